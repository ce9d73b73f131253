//! Which addresses a request may be sent to. Asked after the name was resolved, for every address that is tried, so that a name
//! cannot lead to where its owner should not reach. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Which addresses may be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// Every one.
    Any,
    /// Those of the public internet.
    Public,
    /// Those, and this machine itself.
    PublicAndLoopback,
}

impl Addresses {
    /// Whether this one may be reached.
    pub fn allows(self, address: IpAddr) -> bool {
        let address = plain(address);
        match self {
            Addresses::Any => true,
            Addresses::Public => is_public(address),
            Addresses::PublicAndLoopback => is_public(address) || address.is_loopback(),
        }
    }
}

/// The address that is meant: IPv4 can be written in several kinds of IPv6.
fn plain(address: IpAddr) -> IpAddr {
    let IpAddr::V6(six) = address else { return address };
    let [a, b, c, ..] = six.segments();
    let last: [u8; 4] = *six.octets().last_chunk().expect("an address has 16 bytes");
    let is_translated = [a, b] == [0x64, 0xff9b] && six.segments()[2..6] == [0; 4];
    let is_compatible = six.segments()[..6] == [0; 6] && !six.is_unspecified() && six != Ipv6Addr::LOCALHOST;
    match six.to_ipv4_mapped() {
        Some(four) => four.into(),
        None if is_translated || is_compatible => Ipv4Addr::from(last).into(),
        // 6to4 carries the address behind its prefix.
        None if a == 0x2002 => Ipv4Addr::from((u32::from(b) << 16) | u32::from(c)).into(),
        None => address,
    }
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(four) => {
            let [a, b, c, _] = four.octets();
            let is_reserved = a == 0
                || a >= 240
                || (a == 100 && (64..128).contains(&b))
                || (a == 192 && b == 0 && c == 0)
                || (a == 192 && b == 88 && c == 99)
                || (a == 198 && (b == 18 || b == 19));
            !(is_reserved
                || four.is_private()
                || four.is_loopback()
                || four.is_link_local()
                || four.is_broadcast()
                || four.is_documentation()
                || four.is_multicast())
        }
        // Of IPv6 only what is given out to the public: all the rest is local, of one link, or reserved.
        IpAddr::V6(six) => {
            let [a, b, ..] = six.segments();
            (0x2000..0x4000).contains(&a)
                && !(a == 0x2001 && (b < 0x200 || b == 0xdb8))
                && !(a == 0x3fff && b < 0x1000)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_allowed(filter: Addresses, text: &str) -> bool {
        filter.allows(text.parse().unwrap())
    }

    #[test]
    fn only_the_public_internet_is_public() {
        for text in ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"] {
            assert!(is_allowed(Addresses::Public, text), "{text}");
        }
        for text in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "192.168.0.1",
            "192.0.0.1",
            "192.0.2.1",
            "198.18.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2002:a9fe:a9fe::",
            "2001::1",
            "2001:db8::1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is_allowed(Addresses::Public, text), "{text}");
            assert!(is_allowed(Addresses::Any, text), "{text}");
        }
    }

    #[test]
    fn loopback_is_allowed_where_it_is_and_nothing_else_with_it() {
        for text in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "1.1.1.1"] {
            assert!(is_allowed(Addresses::PublicAndLoopback, text), "{text}");
        }
        for text in ["10.0.0.1", "169.254.169.254", "fe80::1", "0.0.0.0", "::"] {
            assert!(!is_allowed(Addresses::PublicAndLoopback, text), "{text}");
        }
    }
}

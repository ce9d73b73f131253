//! Peers that are believed when they name a user: addresses and networks. Pure.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::GatewayError;

/// A set of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peers(Vec<Network>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    address: IpAddr,
    bits: u8,
}

impl Default for Peers {
    /// This machine.
    fn default() -> Self {
        Self(vec![
            Network { address: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), bits: 8 },
            Network { address: IpAddr::V6(Ipv6Addr::LOCALHOST), bits: 128 },
        ])
    }
}

impl Peers {
    /// These networks, each an address or `ADDRESS/BITS`.
    ///
    /// # Errors
    /// One of them is neither.
    pub fn of<T: AsRef<str>>(networks: &[T]) -> Result<Self, GatewayError> {
        Ok(Self(networks.iter().map(|network| network.as_ref().parse()).collect::<Result<_, String>>()?))
    }

    /// Whether this address is among them.
    pub fn contain(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(address))
    }
}

impl Network {
    fn contains(self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                same(network.to_bits().into(), address.to_bits().into(), 32 - u32::from(self.bits))
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                same(network.to_bits(), address.to_bits(), 128 - u32::from(self.bits))
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

/// Whether two addresses are the same but for their last bits.
fn same(one: u128, other: u128, but: u32) -> bool {
    one.checked_shr(but).unwrap_or(0) == other.checked_shr(but).unwrap_or(0)
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("bad network {text:?}: expected something like 10.0.0.0/8 or ::1");
        let (address, bits) = text.split_once('/').map_or((text, None), |(one, two)| (one, Some(two)));
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let all = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            Some(bits) => bits.parse().ok().filter(|bits| *bits <= all).ok_or_else(bad)?,
            None => all,
        };
        Ok(Self { address, bits })
    }
}

impl fmt::Display for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let networks: Vec<String> =
            self.0.iter().map(|network| format!("{}/{}", network.address, network.bits)).collect();
        f.write_str(&networks.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_their_addresses_and_no_others() {
        let peers = Peers::of(&["10.0.0.0/8", "192.168.1.7", "fd00::/8"]).unwrap();
        for (address, is_in) in [
            ("10.255.0.1", true),
            ("11.0.0.1", false),
            ("192.168.1.7", true),
            ("192.168.1.8", false),
            ("fd12::1", true),
            ("fe80::1", false),
            ("::ffff:10.1.1.1", true),
            ("127.0.0.1", false),
        ] {
            assert_eq!(peers.contain(address.parse().unwrap()), is_in, "{address}");
        }
        assert!(Peers::of(&["0.0.0.0/0"]).unwrap().contain("8.8.8.8".parse().unwrap()));
        assert!(Peers::default().contain("127.9.9.9".parse().unwrap()));
        assert!(!Peers::default().contain("10.0.0.1".parse().unwrap()));
        assert!(Peers::of(&["10.0.0.0/33"]).is_err() && Peers::of(&["host"]).is_err());
    }
}

//! The inside of a sealed answer: headers and body as one piece, and that piece made smaller where it pays. Owns the
//! bytes and their bounds; knows no keys. What it reads may have been written by anybody, so that every length is
//! checked before it is believed.

use bytes::Bytes;

use crate::claims::Answer;

/// Bodies up to this size are not worth compressing.
pub const COMPRESSED_BODY_BYTES_MIN: usize = 512;
/// The most that a compressed answer may unpack to. Larger ones are kept as they are.
pub const UNPACKED_BYTES_MAX: usize = 16 << 20;
/// Quick, and close to what more effort would give.
const ZSTD_LEVEL: i32 = 3;
/// Bytes of the length that stands before a compressed piece.
const LENGTH_BYTES: usize = 4;

/// How a piece is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    /// As it is.
    Whole,
    /// By zstd, its unpacked length before it.
    Zstd,
}

impl Packing {
    pub(crate) const ALL: [Packing; 2] = [Packing::Whole, Packing::Zstd];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Packing::Whole => "whole",
            Packing::Zstd => "zstd",
        }
    }
}

/// What is wrong with a piece, as the end of a sentence about the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damaged(pub(crate) &'static str);

/// Headers and body in one piece: the number of headers, then each name and value after its length, then the body.
pub(crate) fn fold(answer: &Answer) -> Vec<u8> {
    let headers: usize = answer.headers.iter().map(|(name, value)| 16 + name.len() + value.len()).sum();
    let mut piece = Vec::with_capacity(8 + headers + answer.body.len());
    piece.extend_from_slice(&(answer.headers.len() as u64).to_be_bytes());
    for (name, value) in answer.headers.iter() {
        put(&mut piece, name.as_bytes());
        put(&mut piece, value);
    }
    piece.extend_from_slice(&answer.body);
    piece
}

/// Headers in order, as an answer has them.
type Headers = Vec<(String, Vec<u8>)>;

/// Headers and body of a piece.
pub(crate) fn unfold(piece: &[u8]) -> Result<(Headers, Bytes), Damaged> {
    let mut rest = piece;
    let count = take_length(&mut rest)?;
    let mut headers = Vec::new();
    for _ in 0..count {
        let name = std::str::from_utf8(take(&mut rest)?).map_err(|_| CUT)?.to_owned();
        headers.push((name, take(&mut rest)?.to_vec()));
    }
    Ok((headers, Bytes::copy_from_slice(rest)))
}

/// Compresses a piece if its body is large enough for it, and if it gets smaller.
pub(crate) fn pack(piece: Vec<u8>, body_bytes: usize) -> (Packing, Vec<u8>) {
    if body_bytes <= COMPRESSED_BODY_BYTES_MIN || piece.len() > UNPACKED_BYTES_MAX {
        return (Packing::Whole, piece);
    }
    let length = u32::try_from(piece.len()).expect("the bound fits 32 bits").to_be_bytes();
    match zstd::bulk::compress(&piece, ZSTD_LEVEL) {
        Ok(small) if LENGTH_BYTES + small.len() < piece.len() => {
            (Packing::Zstd, [length.as_slice(), &small].concat())
        }
        Ok(_) | Err(_) => (Packing::Whole, piece),
    }
}

/// The piece that was packed. Never makes room for more than the bound, whatever the packed bytes say.
pub(crate) fn unpack(packing: Packing, packed: Vec<u8>) -> Result<Vec<u8>, Damaged> {
    match packing {
        Packing::Whole => Ok(packed),
        Packing::Zstd => {
            let (length, small) = packed.split_first_chunk::<LENGTH_BYTES>().ok_or(CUT)?;
            let length = usize::try_from(u32::from_be_bytes(*length)).map_err(|_| TOO_LARGE)?;
            if length > UNPACKED_BYTES_MAX {
                return Err(TOO_LARGE);
            }
            let piece = zstd::bulk::decompress(small, length).map_err(|_| NOT_WHAT_IT_SAYS)?;
            if piece.len() == length { Ok(piece) } else { Err(NOT_WHAT_IT_SAYS) }
        }
    }
}

const CUT: Damaged = Damaged("is damaged: its parts do not fit together");
const TOO_LARGE: Damaged = Damaged("is refused: it would unpack to more than 16 MiB");
const NOT_WHAT_IT_SAYS: Damaged = Damaged("is damaged: it does not unpack to the length it names");

fn put(piece: &mut Vec<u8>, part: &[u8]) {
    piece.extend_from_slice(&(part.len() as u64).to_be_bytes());
    piece.extend_from_slice(part);
}

fn take<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], Damaged> {
    let length = usize::try_from(take_length(rest)?).map_err(|_| CUT)?;
    let (part, after) = rest.split_at_checked(length).ok_or(CUT)?;
    *rest = after;
    Ok(part)
}

fn take_length(rest: &mut &[u8]) -> Result<u64, Damaged> {
    let (length, after) = rest.split_first_chunk::<8>().ok_or(CUT)?;
    *rest = after;
    Ok(u64::from_be_bytes(*length))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_unfold_and_unpack_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = unfold(&bytes);
            for packing in Packing::ALL {
                let _ = unpack(packing, bytes.clone());
            }
        }
    }

    #[test]
    fn only_what_gets_smaller_is_compressed() {
        let compressible = vec![b'a'; 2000];
        assert_eq!(pack(compressible.clone(), COMPRESSED_BODY_BYTES_MIN).0, Packing::Whole);
        let (packing, packed) = pack(compressible.clone(), COMPRESSED_BODY_BYTES_MIN + 1);
        assert_eq!((packing, packed.len() < 100), (Packing::Zstd, true));
        assert_eq!(unpack(packing, packed), Ok(compressible));
        // The steps of this generator have no pattern that zstd would find.
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u8
        };
        let noise: Vec<u8> = (0..2000).map(|_| next()).collect();
        assert_eq!(pack(noise.clone(), noise.len()), (Packing::Whole, noise));
    }

    #[test]
    fn what_could_not_be_unpacked_is_not_packed() {
        let huge = vec![0; UNPACKED_BYTES_MAX + 1];
        assert_eq!(pack(huge, UNPACKED_BYTES_MAX).0, Packing::Whole);
        let large = vec![0; UNPACKED_BYTES_MAX];
        let (packing, packed) = pack(large.clone(), UNPACKED_BYTES_MAX);
        assert_eq!(packing, Packing::Zstd);
        assert!(unpack(packing, packed).is_ok_and(|piece| piece == large));
    }

    #[test]
    fn a_bomb_is_refused_whatever_length_it_names() {
        let bomb =
            zstd::bulk::compress(&vec![0; UNPACKED_BYTES_MAX * 2], ZSTD_LEVEL).expect("zeros compress");
        let named = |length: u32| [length.to_be_bytes().as_slice(), &bomb].concat();
        assert_eq!(unpack(Packing::Zstd, named((UNPACKED_BYTES_MAX * 2) as u32)), Err(TOO_LARGE));
        assert_eq!(unpack(Packing::Zstd, named(u32::MAX)), Err(TOO_LARGE));
        // One that does not say how large it is, as a stream is not known to its end.
        let zeros = std::io::repeat(0).take(UNPACKED_BYTES_MAX as u64 * 2);
        let stream = zstd::stream::encode_all(zeros, ZSTD_LEVEL).expect("zeros compress");
        for length in [0, 1000, UNPACKED_BYTES_MAX as u32] {
            let streamed = [length.to_be_bytes().as_slice(), &stream].concat();
            for packed in [named(length), streamed] {
                assert_eq!(unpack(Packing::Zstd, packed), Err(NOT_WHAT_IT_SAYS), "{length}");
            }
        }
    }
}

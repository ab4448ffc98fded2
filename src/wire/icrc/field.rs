//! Arithmetic modulo the CRC-32 polynomial, and the tables made with it at compile time.

/// The polynomial without x^32, reflected.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// 1, that is x^0.
const ONE: u32 = 1 << 31;

/// Times x.
const fn times_x(a: u32) -> u32 {
    a >> 1 ^ (a & 1).wrapping_neg() & POLYNOMIAL
}

/// Divided by x: the polynomial has the term x^0, so x has an inverse.
const fn over_x(a: u32) -> u32 {
    let odd = (a >> 31).wrapping_neg();
    (a ^ odd & POLYNOMIAL) << 1 | odd & 1
}

/// The product, without branches on the data.
pub(super) const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        product ^= (a >> bit & 1).wrapping_neg() & b;
        b = times_x(b);
    }
    product
}

/// x^(-8 * bytes).
pub(super) const fn inverse_power(bytes: usize) -> u32 {
    let mut square = ONE;
    let mut i = 0;
    while i < 8 {
        square = over_x(square);
        i += 1;
    }
    let mut power = ONE;
    let mut rest = bytes;
    while rest > 0 {
        if rest & 1 == 1 {
            power = multiply(power, square);
        }
        square = multiply(square, square);
        rest >>= 1;
    }
    power
}

/// What each value of a byte does to the register when `distance` bytes follow it.
const fn at_distance(distance: usize) -> [u32; 256] {
    let mut row = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut state = byte as u32;
        let mut bits = 8 * (distance + 1);
        while bits > 0 {
            state = times_x(state);
            bits -= 1;
        }
        row[byte] = state;
        byte += 1;
    }
    row
}

/// Row `d`: a byte that `d` bytes follow.
pub(super) static SLICES: [[u32; 256]; 16] = {
    let mut rows = [[0; 256]; 16];
    let mut distance = 0;
    while distance < 16 {
        rows[distance] = at_distance(distance);
        distance += 1;
    }
    rows
};

/// The total length and the identification of an IPv4 header, byte for byte, up to the end of the UDP header.
pub(super) static V4_LENGTH_ID: [[u32; 256]; 4] =
    [at_distance(25), at_distance(24), at_distance(23), at_distance(22)];

/// The payload length of an IPv6 header likewise.
pub(super) static V6_LENGTH: [[u32; 256]; 2] = [at_distance(43), at_distance(42)];

/// `inverse_power(24 + 4 * i)`: undoes what `4 * i` bytes from the BTH on, the rest of the IP header and the UDP header
/// did to the identification. Long enough for a path MTU of 4096.
pub(super) static INVERSE_POWERS: [u32; 1040] = {
    let step = inverse_power(4);
    let mut powers = [inverse_power(24); 1040];
    let mut i = 1;
    while i < powers.len() {
        powers[i] = multiply(powers[i - 1], step);
        i += 1;
    }
    powers
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x_and_its_inverse_cancel() {
        let mut a = 0x1234_5678;
        for _ in 0..100 {
            assert_eq!(over_x(times_x(a)), a);
            assert_eq!(times_x(over_x(a)), a);
            a = multiply(a, 0x9e37_79b9);
        }
        assert_eq!(multiply(ONE, a), a);
    }

    #[test]
    fn powers_agree_with_repeated_division() {
        let mut power = ONE;
        for bytes in 0..5000 {
            if bytes % 97 == 0 {
                assert_eq!(inverse_power(bytes), power);
            }
            if bytes >= 24
                && bytes % 4 == 0
                && let Some(&listed) = INVERSE_POWERS.get((bytes - 24) / 4)
            {
                assert_eq!(listed, power);
            }
            for _ in 0..8 {
                power = over_x(power);
            }
        }
    }
}

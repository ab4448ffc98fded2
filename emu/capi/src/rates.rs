//! Conversions between the coded rate of an address, multiples of 2.5 Gb/s and Mb/s.

use std::ffi::c_int;

use crate::abi::*;

/// The rates that are a multiple of the base rate in the old sense.
const MULTIPLES: &[(u32, c_int)] = &[
    (IBV_RATE_2_5_GBPS, 1),
    (IBV_RATE_5_GBPS, 2),
    (IBV_RATE_10_GBPS, 4),
    (IBV_RATE_20_GBPS, 8),
    (IBV_RATE_30_GBPS, 12),
    (IBV_RATE_40_GBPS, 16),
    (IBV_RATE_60_GBPS, 24),
    (IBV_RATE_80_GBPS, 32),
    (IBV_RATE_120_GBPS, 48),
    (IBV_RATE_28_GBPS, 11),
    (IBV_RATE_50_GBPS, 20),
    (IBV_RATE_400_GBPS, 160),
    (IBV_RATE_600_GBPS, 240),
    (IBV_RATE_800_GBPS, 320),
    (IBV_RATE_1200_GBPS, 480),
];

/// Signalling rates.
const MBPS: &[(u32, c_int)] = &[
    (IBV_RATE_2_5_GBPS, 2500),
    (IBV_RATE_5_GBPS, 5000),
    (IBV_RATE_10_GBPS, 10_000),
    (IBV_RATE_20_GBPS, 20_000),
    (IBV_RATE_30_GBPS, 30_000),
    (IBV_RATE_40_GBPS, 40_000),
    (IBV_RATE_60_GBPS, 60_000),
    (IBV_RATE_80_GBPS, 80_000),
    (IBV_RATE_120_GBPS, 120_000),
    (IBV_RATE_14_GBPS, 14_062),
    (IBV_RATE_56_GBPS, 56_250),
    (IBV_RATE_112_GBPS, 112_500),
    (IBV_RATE_168_GBPS, 168_750),
    (IBV_RATE_25_GBPS, 25_781),
    (IBV_RATE_100_GBPS, 103_125),
    (IBV_RATE_200_GBPS, 206_250),
    (IBV_RATE_300_GBPS, 309_375),
    (IBV_RATE_28_GBPS, 28_125),
    (IBV_RATE_50_GBPS, 53_125),
    (IBV_RATE_400_GBPS, 425_000),
    (IBV_RATE_600_GBPS, 637_500),
    (IBV_RATE_800_GBPS, 850_000),
    (IBV_RATE_1200_GBPS, 1_275_000),
];

fn from_rate(table: &[(u32, c_int)], rate: u32) -> c_int {
    table.iter().find(|(code, _)| *code == rate).map_or(-1, |(_, value)| *value)
}

fn to_rate(table: &[(u32, c_int)], value: c_int) -> u32 {
    table.iter().find(|(_, known)| *known == value).map_or(IBV_RATE_MAX, |(code, _)| *code)
}

/// ibv_rate_to_mult(3)
pub extern "C" fn ibv_rate_to_mult(rate: u32) -> c_int {
    from_rate(MULTIPLES, rate)
}

/// mult_to_ibv_rate(3)
pub extern "C" fn mult_to_ibv_rate(multiple: c_int) -> u32 {
    to_rate(MULTIPLES, multiple)
}

/// ibv_rate_to_mbps(3)
pub extern "C" fn ibv_rate_to_mbps(rate: u32) -> c_int {
    from_rate(MBPS, rate)
}

/// mbps_to_ibv_rate(3)
pub extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> u32 {
    to_rate(MBPS, mbps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rate_converts_there_and_back() {
        for rate in 2..=IBV_RATE_1200_GBPS {
            assert_eq!(mbps_to_ibv_rate(ibv_rate_to_mbps(rate)), rate);
            let multiple = ibv_rate_to_mult(rate);
            assert!(multiple == -1 || mult_to_ibv_rate(multiple) == rate);
        }
        assert_eq!(ibv_rate_to_mult(IBV_RATE_40_GBPS), 16);
        assert_eq!(ibv_rate_to_mbps(IBV_RATE_100_GBPS), 103_125);
    }

    #[test]
    fn unknown_rates_are_minus_one_and_unknown_speeds_the_maximum() {
        assert_eq!(ibv_rate_to_mult(IBV_RATE_MAX), -1);
        assert_eq!(ibv_rate_to_mult(IBV_RATE_14_GBPS), -1);
        assert_eq!(ibv_rate_to_mbps(99), -1);
        assert_eq!(mult_to_ibv_rate(3), IBV_RATE_MAX);
        assert_eq!(mbps_to_ibv_rate(-5), IBV_RATE_MAX);
    }
}

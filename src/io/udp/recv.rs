//! Receiving.

use std::io;
use std::sync::atomic::Ordering::Relaxed;

use super::UdpLink;
use crate::io::rx::{BUFFER, Meta, RxBatch};
use crate::io::sys::{self, Incoming};

impl UdpLink {
    pub(super) fn receive_batch(&self, rx: &mut RxBatch) -> io::Result<usize> {
        rx.clear();
        if let Some(raw) = &self.raw {
            raw.receive(rx, &self.counters)?;
            if !rx.is_empty() || !raw.splits() {
                return Ok(rx.len());
            }
        }
        self.receive_udp(rx)
    }

    fn receive_udp(&self, rx: &mut RxBatch) -> io::Result<usize> {
        while !rx.is_full() {
            let (free, start) = rx.free();
            match sys::receive(&self.socket, &mut free[..BUFFER]) {
                Ok(incoming) => self.accept(rx, start, incoming),
                Err(libc::EAGAIN) => break,
                Err(libc::EINTR) => {}
                Err(errno) => return Err(io::Error::from_raw_os_error(errno)),
            }
        }
        Ok(rx.len())
    }

    fn accept(&self, rx: &mut RxBatch, start: usize, incoming: Incoming) {
        if let Some(total) = incoming.overflow {
            let seen = self.overflow_seen.swap(total, Relaxed);
            self.counters.rx_overflow.add(u64::from(total.wrapping_sub(seen)));
        }
        let (false, Some(src)) = (incoming.truncated, incoming.src) else {
            self.counters.rx_truncated.add(1);
            return;
        };
        self.counters.rx_datagrams.add(1);
        self.counters.rx_bytes.add(incoming.len as u64);
        let meta = Meta {
            src,
            dst: self.local.ip(),
            traffic_class: incoming.traffic_class,
            hop_limit: incoming.hop_limit,
            ip_id: None,
            segment: incoming.segment.unwrap_or(incoming.len),
        };
        rx.accept(meta, start, incoming.len);
    }
}

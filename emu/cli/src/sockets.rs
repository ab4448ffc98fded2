//! What sockets a group of processes has open, as /proc tells it.

use std::collections::HashSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::run::ROCE_PORT;

/// The sockets that `pair` looks for.
#[derive(Default, Debug)]
pub(crate) struct Sockets {
    /// Address of a listening TCP socket.
    pub(crate) listener: Option<IpAddr>,
    /// Address of the device.
    pub(crate) device: Option<IpAddr>,
}

/// Looks through the processes of a process group.
pub(crate) fn of_group(group: i32) -> Sockets {
    let mut found = Sockets::default();
    for pid in members(group) {
        let inodes = socket_inodes(pid);
        for (file, v6) in [("tcp", false), ("tcp6", true), ("udp", false), ("udp6", true)] {
            let table = fs::read_to_string(format!("/proc/{pid}/net/{file}")).unwrap_or_default();
            for socket in table.lines().skip(1).filter_map(|line| parse(line, v6)) {
                if !inodes.contains(&socket.inode) {
                    continue;
                }
                if file.starts_with("tcp") && socket.state == "0A" {
                    found.listener = Some(socket.address);
                } else if file.starts_with("udp") && socket.port == ROCE_PORT {
                    found.device = Some(socket.address);
                }
            }
        }
    }
    found
}

fn members(group: i32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
    pids.filter(|pid| group_of(*pid) == Some(group)).collect()
}

/// Whether others than its leader are in a process group.
pub(crate) fn has_followers(group: i32) -> bool {
    members(group).into_iter().any(|pid| i32::try_from(pid) != Ok(group))
}

/// The process group of a process.
pub(crate) fn group_of(pid: u32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // After the name in parentheses, which may itself hold any character: state, parent, group.
    stat.rsplit_once(')')?.1.split_whitespace().nth(2)?.parse().ok()
}

fn socket_inodes(pid: u32) -> HashSet<u64> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return HashSet::new() };
    let inode = |e: fs::DirEntry| {
        let target = fs::read_link(e.path()).ok()?;
        target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    entries.flatten().filter_map(inode).collect()
}

struct Socket<'a> {
    address: IpAddr,
    port: u16,
    state: &'a str,
    inode: u64,
}

/// One line of /proc/net/{tcp,udp}: words of the address are in the host's byte order.
fn parse(line: &str, v6: bool) -> Option<Socket<'_>> {
    let fields: Vec<_> = line.split_whitespace().collect();
    let (address, port) = fields.get(1)?.split_once(':')?;
    let word = |i: usize| u32::from_str_radix(address.get(i * 8..i * 8 + 8)?, 16).ok().map(u32::to_ne_bytes);
    let address = if v6 {
        let bytes = [word(0)?, word(1)?, word(2)?, word(3)?].concat();
        IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?))
    } else {
        Ipv4Addr::from(word(0)?).into()
    };
    let port = u16::from_str_radix(port, 16).ok()?;
    Some(Socket {
        address: address.to_canonical(),
        port,
        state: fields.get(3)?,
        inode: fields.get(9)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, UdpSocket};

    #[test]
    fn finds_what_this_process_has_open() {
        let _listener = TcpListener::bind("127.0.3.5:0").unwrap();
        let device = UdpSocket::bind(("127.0.3.6", ROCE_PORT));
        let found = of_group(group_of(std::process::id()).unwrap());
        assert_eq!(found.listener, Some([127, 0, 3, 5].into()));
        if device.is_ok() {
            assert!(found.device.is_some());
        }
    }

    #[test]
    fn reads_both_address_families() {
        let line = "   1: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12345 1 0";
        let s = parse(line, false).unwrap();
        assert_eq!(
            (s.address.to_string(), s.port, s.state, s.inode),
            ("127.0.0.1".into(), 8080, "0A", 12345)
        );
        let line = line.replace("0100007F", "00000000000000000000000001000000");
        assert_eq!(parse(&line, true).unwrap().address.to_string(), "::1");
        assert!(parse("x", false).is_none() && parse("1: 01:1 0 0A", true).is_none());
    }
}

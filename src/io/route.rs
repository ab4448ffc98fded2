//! Facts about the host's interfaces.

use std::io;
use std::net::IpAddr;

use super::sys;

/// The interface that an address belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// Its name, as in `/sys/class/net`.
    pub name: String,
    /// Its MTU in IP bytes.
    pub mtu: u32,
    /// The address's prefix length.
    pub prefix: u32,
    /// The scope number of a link-local IPv6 address, else 0.
    pub scope_id: u32,
}

/// The interface of a local address; `None` if no interface has it.
///
/// All of 127.0.0.0/8 belongs to the loopback interface.
pub fn interface(ip: IpAddr) -> io::Result<Option<Interface>> {
    let addresses = sys::interface_addresses()?;
    let exact = addresses.iter().find(|a| a.ip == ip);
    let found = exact.or_else(|| match ip {
        IpAddr::V4(v4) if v4.is_loopback() => {
            addresses.iter().find(|a| matches!(a.ip, IpAddr::V4(v4) if v4.is_loopback()))
        }
        _ => None,
    });
    let Some(found) = found else { return Ok(None) };
    let mtu = sys::interface_mtu(&found.name)?;
    Ok(Some(Interface { name: found.name.clone(), mtu, prefix: found.prefix, scope_id: found.scope_id }))
}

/// The MTU of the interface of a local address, in IP bytes.
pub fn link_mtu(ip: IpAddr) -> io::Result<Option<u32>> {
    Ok(interface(ip)?.map(|i| i.mtu))
}

/// Whether packets to this address stay within the host: it is an address of the host itself.
///
/// Then they pass the loopback interface, where the kernel does not take GSO sends apart.
pub fn is_loopback_path(destination: IpAddr) -> bool {
    destination.is_loopback()
        || sys::interface_addresses().is_ok_and(|all| all.iter().any(|a| a.ip == destination))
}

/// An address of an interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    /// The interface's name.
    pub interface: String,
    /// The address.
    pub ip: IpAddr,
    /// The scope number of a link-local IPv6 address, else 0.
    pub scope_id: u32,
}

/// The addresses of all interfaces.
pub fn addresses() -> io::Result<Vec<Address>> {
    let all = sys::interface_addresses()?.into_iter();
    Ok(all.map(|a| Address { interface: a.name, ip: a.ip, scope_id: a.scope_id }).collect())
}

/// The addresses of all interfaces with the interface's name.
pub fn local_addresses() -> io::Result<Vec<(String, IpAddr)>> {
    Ok(sys::interface_addresses()?.into_iter().map(|a| (a.name, a.ip)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_loopback_address_belongs_to_lo() {
        for ip in ["127.0.0.1", "127.0.93.7"] {
            let found = interface(ip.parse().unwrap()).unwrap().unwrap();
            assert_eq!(found.name, "lo");
            assert!(found.mtu >= 1280, "{found:?}");
            assert!(is_loopback_path(ip.parse().unwrap()));
        }
    }

    #[test]
    fn a_foreign_address_has_no_interface() {
        // TEST-NET-2 (RFC 5737): nobody's address.
        let ip = "198.51.100.77".parse().unwrap();
        assert_eq!(interface(ip).unwrap(), None);
        assert!(!is_loopback_path(ip));
    }
}

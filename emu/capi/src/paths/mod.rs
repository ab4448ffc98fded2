//! tmp
use crate::boundary::*;
use std::ffi::CStr;
pub(crate) fn sysfs_path() -> &'static CStr {
    c"/sys"
}
pub(crate) fn read_file(path: &[u8], limit: usize) -> Outcome<Vec<u8>> {
    use std::io::Read;
    use std::os::unix::ffi::OsStrExt;
    let file = std::fs::File::open(std::ffi::OsStr::from_bytes(path))
        .map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EIO)))?;
    let mut text = Vec::new();
    file.take(limit as u64 + 1)
        .read_to_end(&mut text)
        .map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EIO)))?;
    Ok(text)
}

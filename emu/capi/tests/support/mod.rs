//! What the tests share: the built library, its folder of links, and running programs.
#![allow(dead_code, unreachable_pub)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Runs a command that has to succeed and returns what it printed.
pub fn output(command: &mut Command) -> String {
    let result = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&result.stdout).into_owned();
    assert!(
        result.status.success(),
        "{command:?}: {}\n{text}{}",
        result.status,
        String::from_utf8_lossy(&result.stderr)
    );
    text
}

/// Whether the C headers and a compiler are installed; says what is missing if not.
pub fn have_headers() -> bool {
    let there = Path::new("/usr/include/infiniband/verbs.h").exists()
        && Path::new("/usr/include/rdma/rdma_cma.h").exists()
        && have_program("cc");
    if !there {
        eprintln!("skipped: needs cc, libibverbs-dev and librdmacm-dev");
    }
    there
}

/// Whether a program is in the path.
pub fn have_program(name: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(name).is_file()))
}

/// The shared object, of the profile that this test was built with. Cargo does not build a cdylib for the
/// tests of its own package, since they cannot link it, so this does; it is quick if nothing changed.
pub fn library() -> PathBuf {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| built("liburxe.so")).clone()
}

/// The `urxe` command, beside the library: programs start the daemon with it.
pub fn command_line() -> PathBuf {
    static COMMAND: OnceLock<PathBuf> = OnceLock::new();
    COMMAND.get_or_init(|| built("urxe")).clone()
}

fn built(file: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its path");
    let folder = test.ancestors().nth(2).expect("tests are built in <target>/<profile>/deps");
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") => "dev",
        Some(other) => other,
        None => panic!("{} is not a profile's folder", folder.display()),
    };
    // Without cargo around it the test takes what is there.
    if let Some(cargo) = std::env::var_os("CARGO") {
        output(
            Command::new(cargo)
                // The whole workspace, as everybody does: another choice of packages has other features of what they
                // depend on, and builds all of it again.
                .args(["build", "--quiet", "--workspace", "--profile", profile])
                .arg("--target-dir")
                .arg(folder.parent().expect("the target folder"))
                .current_dir(env!("CARGO_MANIFEST_DIR")),
        );
    }
    let path = folder.join(file);
    assert!(path.is_file(), "{} is not built", path.display());
    path
}

/// A folder with the library under the names that programs look for.
pub fn drop_in() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("drop-in-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the target folder is writable");
    for name in ["libibverbs.so.1", "librdmacm.so.1", "libibverbs.so", "librdmacm.so"] {
        let link = folder.join(name);
        if !link.exists() {
            std::os::unix::fs::symlink(library(), &link)
                .or_else(|error| match error.kind() {
                    std::io::ErrorKind::AlreadyExists => Ok(()),
                    _ => Err(error),
                })
                .expect("the link can be made");
        }
    }
    folder
}

/// A command that is run over the drop-in library.
///
/// Programs of one test file share a fabric, whose daemon they start.
pub fn over_drop_in(program: impl AsRef<std::ffi::OsStr>) -> Command {
    command_line();
    let folder = drop_in();
    let mut command = Command::new(program);
    command
        .env("LD_LIBRARY_PATH", &folder)
        .env("LD_PRELOAD", folder.join("libibverbs.so.1"))
        .env("URXE_FABRIC", format!("test-{}", std::process::id()))
        .env("LD_BIND_NOW", "1");
    command
}

/// Compiles a C program of this folder.
pub fn compile(name: &str, flags: &[&str], libraries: &[&str]) -> PathBuf {
    compile_as(name, &format!("{name}{}", flags.concat()), flags, libraries)
}

/// Compiles a C program of this folder to a file of another name: tests that run at once need one each.
pub fn compile_as(name: &str, to: &str, flags: &[&str], libraries: &[&str]) -> PathBuf {
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests").join(format!("{name}.c"));
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(to);
    output(Command::new("cc").args(["-Wall", "-o"]).arg(&program).args(flags).arg(source).args(libraries));
    program
}

/// A folder for one test, removed at its end.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        use std::os::unix::fs::PermissionsExt;
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the target folder is writable");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).expect("ours");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

/* Looks at the device's files in every way that programs do. Run with the library preloaded. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define FAILS(call, error) CHECK((call) && errno == (error))

#define DEVICE "/sys/class/infiniband/urxe0"
#define NODE "/dev/infiniband/uverbs0"

static int text_is(FILE *file, const char *expected)
{
	char line[256] = "";

	if (!file)
		return 0;
	if (!fgets(line, sizeof(line), file))
		line[0] = 0;
	fclose(file);
	return !strcmp(line, expected);
}

static int fd_is(int fd, const char *expected)
{
	char line[256] = "";

	if (fd < 0)
		return 0;
	if (read(fd, line, sizeof(line) - 1) < 0)
		line[0] = 0;
	close(fd);
	return !strcmp(line, expected);
}

static int is_node(const struct stat *st)
{
	return S_ISCHR(st->st_mode) && (st->st_mode & 0666) == 0666 && major(st->st_rdev) == 231;
}

static int not_dot(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

static int lists(DIR *dir, const char *name)
{
	struct dirent *entry;
	int found = 0;

	if (!dir)
		return 0;
	while ((entry = readdir(dir)))
		found |= !strcmp(entry->d_name, name);
	closedir(dir);
	return found;
}

static void inside(void)
{
	char buffer[PATH_MAX];
	struct dirent **names;
	struct statx stx;
	struct stat st;
	char *path;
	int fd;
	ssize_t n;

	CHECK(text_is(fopen(DEVICE "/ports/1/gids/0", "r"), "0000:0000:0000:0000:0000:ffff:7f00:0909\n"));
	CHECK(text_is(fopen64(DEVICE "/ports/1/gid_attrs/types/0", "re"), "RoCE v2\n"));
	CHECK(fd_is(open(DEVICE "/ports/1/gid_attrs/ndevs/0", O_RDONLY), "lo\n"));
	CHECK(fd_is(open64(DEVICE "/node_type", O_RDONLY | O_CLOEXEC), "1: CA\n"));
	CHECK(fd_is(openat(AT_FDCWD, DEVICE "/ports/1/link_layer", O_RDONLY), "Ethernet\n"));
	CHECK(fd_is(openat64(-1, DEVICE "/ports/1/state", O_RDONLY), "4: ACTIVE\n"));
	CHECK(text_is(fopen("/sys/class/infiniband_verbs/uverbs0/ibdev", "r"), "urxe0\n"));

	CHECK(lists(opendir("/sys/class/infiniband"), "urxe0"));
	CHECK(lists(opendir("/sys/class/infiniband/"), "urxe0"));
	CHECK(lists(opendir(DEVICE "/device/net"), "lo"));
	CHECK(lists(opendir("/dev/infiniband"), "uverbs0"));
	CHECK(scandir("/sys/class/infiniband", &names, not_dot, alphasort) == 1);
	CHECK(scandirat(AT_FDCWD, "/sys/class/infiniband", &names, not_dot, alphasort) == 1);

	/* Below a folder that was opened, relative paths are the kernel's own business. */
	fd = open(DEVICE, O_RDONLY | O_DIRECTORY);
	CHECK(fd >= 0);
	CHECK(fd_is(openat(fd, "node_desc", O_RDONLY), "urxe0\n"));
	close(fd);

	CHECK(!stat(NODE, &st) && is_node(&st));
	CHECK(!lstat(NODE, &st) && is_node(&st));
	CHECK(!fstatat(AT_FDCWD, NODE, &st, 0) && is_node(&st));
	CHECK(!statx(AT_FDCWD, NODE, 0, STATX_BASIC_STATS, &stx) && S_ISCHR(stx.stx_mode) && stx.stx_rdev_major == 231);
	CHECK(!access(NODE, R_OK | W_OK));
	CHECK(!faccessat(AT_FDCWD, NODE, R_OK | W_OK, 0));
	CHECK(!eaccess(NODE, R_OK | W_OK));
	CHECK(!euidaccess(NODE, R_OK | W_OK));
	FAILS(open(NODE, O_RDWR) == -1, ENXIO);
	FAILS(open(NODE, O_RDONLY) == -1, ENXIO);
	FAILS(!fopen(NODE, "r+"), ENXIO);
	CHECK(!stat("/dev/infiniband", &st) && S_ISDIR(st.st_mode));

	FAILS(open(DEVICE "/node_desc", O_RDWR) == -1, EACCES);
	FAILS(open(DEVICE "/new", O_RDWR | O_CREAT, 0600) == -1, ENOENT);
	FAILS(!fopen(DEVICE "/node_desc", "w"), EACCES);
	FAILS(open(DEVICE "/ports/1/gids/99", O_RDONLY) == -1, ENOENT);
	FAILS(access("/dev/infiniband/uverbs1", F_OK) == -1, ENOENT);
	FAILS(access("/sys/class/misc/rdma_cm", F_OK) == -1, ENOENT);
	FAILS(!opendir("/sys/class/infiniband/mlx5_0"), ENOENT);
	CHECK(text_is(fopen(DEVICE "/node_desc", "r"), "urxe0\n"));

	CHECK(!lstat(DEVICE, &st) && S_ISLNK(st.st_mode));
	CHECK(!stat(DEVICE, &st) && S_ISDIR(st.st_mode));
	n = readlink(DEVICE, buffer, sizeof(buffer));
	CHECK(n == (ssize_t)strlen("../../devices/virtual/urxe/device0/infiniband/urxe0"));
	CHECK(readlinkat(AT_FDCWD, DEVICE, buffer, sizeof(buffer)) == n);

	path = realpath(DEVICE "/../..", NULL);
	CHECK(path && !strcmp(path, "/sys/devices/virtual/urxe/device0"));
	if (path) {
		snprintf(buffer, sizeof(buffer), "%s/numa_node", path);
		CHECK(text_is(fopen(buffer, "r"), "-1\n"));
	}
	free(path);
	CHECK(realpath(DEVICE "/device", buffer) == buffer && !strcmp(buffer, "/sys/devices/virtual/urxe/device0"));
	path = canonicalize_file_name("/dev/infiniband/../infiniband/uverbs0");
	CHECK(path && !strcmp(path, NODE));
	free(path);
	FAILS(!realpath(DEVICE "/../../../../../../../../../..", NULL), ENOENT);
	FAILS(!realpath(DEVICE "/absent", NULL), ENOENT);
}

static void outside(void)
{
	char buffer[PATH_MAX];
	struct stat st;
	int fd;

	CHECK(!stat("/dev/null", &st) && major(st.st_rdev) == 1);
	CHECK(!stat("/sys/class", &st) && S_ISDIR(st.st_mode));
	FAILS(stat("/sys/class/infinibandx", &st) == -1, ENOENT);
	FAILS(open("/nonexistent/file", O_RDONLY) == -1, ENOENT);
	FAILS(open(NULL, O_RDONLY) == -1, EFAULT);
	CHECK(realpath("/proc/self/../self/fd/..", buffer) == buffer && strstr(buffer, "/proc/") == buffer);
	fd = open("paths-created", O_RDWR | O_CREAT | O_TRUNC, 0640);
	CHECK(fd >= 0 && !fstat(fd, &st) && (st.st_mode & 0777) == (0640 & ~022));
	close(fd);
	unlink("paths-created");
	CHECK(!access("/", R_OK));
	CHECK(lists(opendir("/sys"), "class"));
}

/* Before this library's own constructors ran, and before libc set up everything. */
static int early = -1;
static void first(void)
{
	early = access("/dev/null", R_OK);
}
__attribute__((constructor(101))) static void construct(void)
{
	first();
}

int main(void)
{
	int status = -1;
	pid_t child;

	umask(022);
	CHECK(early == 0);
	child = fork();
	if (child == 0) {
		inside();
		_exit(failures);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	inside();
	outside();
	child = fork();
	if (child == 0) {
		failures = 0;
		inside();
		outside();
		_exit(failures);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	return failures != 0;
}

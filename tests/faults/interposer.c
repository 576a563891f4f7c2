/* Makes one state-writing call of a process fail, or ends the process there. Loaded with LD_PRELOAD.
 *
 * A control file (struct control below), mapped by the process and by the test, says which call: calls that change
 * something below one of the roots are counted, and the one that brings `countdown` to zero is hit. Every such call is
 * recorded in a log while `recording` is set. Roots and excluded prefixes come from the environment, separated by ':'.
 *
 *   FAULTS_CONTROL  the control file     FAULTS_ROOTS  directories      FAULTS_EXCLUDED  directories below them
 *   FAULTS_LOG      where calls are recorded, one "NAME PATH" per line
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { KILL = -1, TORN = -2 };

struct control {
    _Atomic int64_t countdown; /* calls until the fault; 0: none */
    _Atomic int64_t seen;      /* calls so far */
    _Atomic int32_t fault;     /* an errno, KILL, or TORN: half of a write, then the end */
    _Atomic int32_t sticky;    /* the fault stays for every later call */
    _Atomic int32_t hit;       /* how many calls were hit */
    _Atomic int32_t recording;
};

static struct control *control;
static const char *roots, *excluded, *log_path;

static char *copy_of(const char *name) {
    const char *value = getenv(name);
    return value ? strdup(value) : NULL;
}

/* Called until there is a control file: the fork of a process without one gets its environment after the fork. */
static void set_up(void) {
    const char *path = getenv("FAULTS_CONTROL");
    if (!path || !getenv("FAULTS_ROOTS")) return;
    roots = copy_of("FAULTS_ROOTS");
    excluded = copy_of("FAULTS_EXCLUDED");
    log_path = copy_of("FAULTS_LOG");
    int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    if (file < 0) return;
    void *shared = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    syscall(SYS_close, file);
    if (shared != MAP_FAILED) control = shared;
}

static int controlled(void) {
    if (!control) set_up();
    return control != NULL;
}

static int below(const char *path, const char *list) {
    while (list && *list) {
        size_t length = strcspn(list, ":");
        if (length && !strncmp(path, list, length) && (path[length] == '/' || !path[length])) return 1;
        list += length + (list[length] == ':');
    }
    return 0;
}

static int of_file(int file, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return path[0] == '/';
}

static int absolute(int directory, const char *name, char *path) {
    if (name[0] == '/') return snprintf(path, PATH_MAX, "%s", name) < PATH_MAX;
    char at[PATH_MAX];
    if (directory == AT_FDCWD) {
        if (syscall(SYS_getcwd, at, sizeof at) < 0) return 0;
    } else if (!of_file(directory, at)) {
        return 0;
    }
    return snprintf(path, PATH_MAX, "%s/%s", at, name) < PATH_MAX;
}

static void record(const char *call, const char *path) {
    char line[PATH_MAX + 64];
    int length = snprintf(line, sizeof line, "%s %s\n", call, path);
    int file = (int)syscall(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0) return;
    syscall(SYS_write, file, line, (size_t)length);
    syscall(SYS_close, file);
}

/* What is to happen to a call about a path: 0 nothing, TORN, or an errno. Does not return where the process ends. */
static int verdict(const char *call, const char *path) {
    if (!control || !below(path, roots) || below(path, excluded)) return 0;
    atomic_fetch_add(&control->seen, 1);
    if (log_path && atomic_load(&control->recording)) record(call, path);
    int stays = atomic_load(&control->sticky) && atomic_load(&control->hit);
    if (!stays) {
        if (atomic_load(&control->countdown) <= 0) return 0;
        if (atomic_fetch_sub(&control->countdown, 1) != 1) return 0;
    }
    atomic_fetch_add(&control->hit, 1);
    if (log_path) {
        char hit[64];
        snprintf(hit, sizeof hit, "HIT:%s", call);
        record(hit, path);
    }
    int fault = atomic_load(&control->fault);
    if (fault == KILL) {
        syscall(SYS_kill, getpid(), SIGKILL);
        for (;;) pause();
    }
    return fault;
}

static int path_verdict(const char *call, int directory, const char *name) {
    char path[PATH_MAX];
    int saved = errno;
    int found = controlled() && name && absolute(directory, name, path) ? verdict(call, path) : 0;
    errno = saved;
    return found == TORN ? KILL : found;
}

static int file_verdict(const char *call, int file) {
    char path[PATH_MAX];
    int saved = errno;
    int found = controlled() && of_file(file, path) ? verdict(call, path) : 0;
    errno = saved;
    return found;
}

static void end(void) {
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FAIL_PATH(call, directory, path)                                                                               \
    do {                                                                                                               \
        int found = path_verdict(call, directory, path);                                                               \
        if (found == KILL) end();                                                                                      \
        if (found) {                                                                                                   \
            errno = found;                                                                                             \
            return -1;                                                                                                 \
        }                                                                                                              \
    } while (0)
#define FAIL_FILE(call, file)                                                                                          \
    do {                                                                                                               \
        int found = file_verdict(call, file);                                                                          \
        if (found == TORN) end();                                                                                      \
        if (found) {                                                                                                   \
            errno = found;                                                                                             \
            return -1;                                                                                                 \
        }                                                                                                              \
    } while (0)

static int changes(int flags) { return (flags & (O_CREAT | O_TRUNC)) != 0 && (flags & O_TMPFILE) != O_TMPFILE; }

#define OPEN(name, call, ...)                                                                                          \
    mode_t mode = 0;                                                                                                   \
    if (flags & O_CREAT) {                                                                                             \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode = va_arg(rest, mode_t);                                                                                   \
        va_end(rest);                                                                                                  \
    }

int open(const char *path, int flags, ...) {
    OPEN(open, "open")
    if (changes(flags)) FAIL_PATH("open", AT_FDCWD, path);
    return NEXT(open)(path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    OPEN(open64, "open")
    if (changes(flags)) FAIL_PATH("open", AT_FDCWD, path);
    return NEXT(open64)(path, flags, mode);
}
int openat(int directory, const char *path, int flags, ...) {
    OPEN(openat, "open")
    if (changes(flags)) FAIL_PATH("open", directory, path);
    return NEXT(openat)(directory, path, flags, mode);
}
int openat64(int directory, const char *path, int flags, ...) {
    OPEN(openat64, "open")
    if (changes(flags)) FAIL_PATH("open", directory, path);
    return NEXT(openat64)(directory, path, flags, mode);
}

ssize_t write(int file, const void *data, size_t size) {
    int found = file_verdict("write", file);
    if (found == TORN) {
        syscall(SYS_write, file, data, size / 2);
        end();
    }
    if (found) {
        errno = found;
        return -1;
    }
    return NEXT(write)(file, data, size);
}
#define POSITIONED(name, type)                                                                                         \
    ssize_t name(int file, const void *data, size_t size, type offset) {                                               \
        int found = file_verdict("pwrite", file);                                                                      \
        if (found == TORN) {                                                                                           \
            syscall(SYS_pwrite64, file, data, size / 2, offset);                                                       \
            end();                                                                                                     \
        }                                                                                                              \
        if (found) {                                                                                                   \
            errno = found;                                                                                             \
            return -1;                                                                                                 \
        }                                                                                                              \
        return NEXT(name)(file, data, size, offset);                                                                   \
    }
POSITIONED(pwrite, off_t)
POSITIONED(pwrite64, off64_t)

ssize_t writev(int file, const struct iovec *parts, int count) {
    FAIL_FILE("writev", file);
    return NEXT(writev)(file, parts, count);
}
int fsync(int file) {
    FAIL_FILE("fsync", file);
    return NEXT(fsync)(file);
}
int fdatasync(int file) {
    FAIL_FILE("fdatasync", file);
    return NEXT(fdatasync)(file);
}
int ftruncate(int file, off_t size) {
    FAIL_FILE("ftruncate", file);
    return NEXT(ftruncate)(file, size);
}
int ftruncate64(int file, off64_t size) {
    FAIL_FILE("ftruncate", file);
    return NEXT(ftruncate64)(file, size);
}
int fallocate(int file, int mode, off_t offset, off_t size) {
    FAIL_FILE("fallocate", file);
    return NEXT(fallocate)(file, mode, offset, size);
}
int fallocate64(int file, int mode, off64_t offset, off64_t size) {
    FAIL_FILE("fallocate", file);
    return NEXT(fallocate64)(file, mode, offset, size);
}
int fchmod(int file, mode_t mode) {
    FAIL_FILE("fchmod", file);
    return NEXT(fchmod)(file, mode);
}
int chmod(const char *path, mode_t mode) {
    FAIL_PATH("chmod", AT_FDCWD, path);
    return NEXT(chmod)(path, mode);
}
int rename(const char *from, const char *to) {
    FAIL_PATH("rename", AT_FDCWD, to);
    return NEXT(rename)(from, to);
}
int renameat(int from_directory, const char *from, int directory, const char *to) {
    FAIL_PATH("rename", directory, to);
    return NEXT(renameat)(from_directory, from, directory, to);
}
int renameat2(int from_directory, const char *from, int directory, const char *to, unsigned flags) {
    FAIL_PATH("rename", directory, to);
    return NEXT(renameat2)(from_directory, from, directory, to, flags);
}
int unlink(const char *path) {
    FAIL_PATH("unlink", AT_FDCWD, path);
    return NEXT(unlink)(path);
}
int unlinkat(int directory, const char *path, int flags) {
    FAIL_PATH("unlink", directory, path);
    return NEXT(unlinkat)(directory, path, flags);
}
int rmdir(const char *path) {
    FAIL_PATH("rmdir", AT_FDCWD, path);
    return NEXT(rmdir)(path);
}
int mkdir(const char *path, mode_t mode) {
    FAIL_PATH("mkdir", AT_FDCWD, path);
    return NEXT(mkdir)(path, mode);
}
int mkdirat(int directory, const char *path, mode_t mode) {
    FAIL_PATH("mkdir", directory, path);
    return NEXT(mkdirat)(directory, path, mode);
}
int link(const char *from, const char *to) {
    FAIL_PATH("link", AT_FDCWD, to);
    return NEXT(link)(from, to);
}
int linkat(int from_directory, const char *from, int directory, const char *to, int flags) {
    FAIL_PATH("link", directory, to);
    return NEXT(linkat)(from_directory, from, directory, to, flags);
}
int symlink(const char *target, const char *path) {
    FAIL_PATH("symlink", AT_FDCWD, path);
    return NEXT(symlink)(target, path);
}

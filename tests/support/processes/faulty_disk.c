/* A disk that fails, and a record of what reached it: preloaded into a process (LD_PRELOAD), it stands before libc's
   calls that change files below $DISK_UNDER, Rust's and Arrow's too.

   $DISK_FAIL_AT   the number of the call that fails (from 0)
   $DISK_ERRNO     with which error; "KILL": the process dies by SIGKILL before it
   $DISK_LASTING   "1": all later ones fail as well
   $DISK_COUNTER   a file in which the calls of all processes that have it are counted together; without it each process
                   counts its own
   $DISK_FAILED    a file that gets a line for each call that failed so
   $DISK_NO_SYNC   "1": a sync does nothing
   $DISK_PAUSE     a name: behind each rename and link the process writes a byte to the FIFO name.at and waits for the
                   end of the FIFO name.go, with all its other calls
   $DISK_RECORD    a file that gets a line for each call that succeeded, in order
   $DISK_KEEP      a folder on the same file system, in which each file that is synced gets another name, which the line
                   of the sync gives */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static long own_calls = 0, num_kept = 0;
static long *num_calls = NULL;
static int record = -1, failed = -1;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void path_at(int folder, const char *path, char *full) {
    char link[64];
    full[0] = 0;
    if (path[0] == '/') {
        snprintf(full, PATH_MAX, "%s", path);
        return;
    }
    ssize_t length = -1;
    if (folder == AT_FDCWD) {
        if (getcwd(full, PATH_MAX)) length = (ssize_t)strlen(full);
    } else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        length = readlink(link, full, PATH_MAX - 1);
    }
    if (length < 0) return;
    snprintf(full + length, PATH_MAX - (size_t)length, "/%s", path);
}

static void path_of(int file, char *full) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, full, PATH_MAX - 1);
    full[length < 0 ? 0 : length] = 0;
}

static int is_under(const char *path) {
    const char *top = getenv("DISK_UNDER");
    return top != NULL && strncmp(path, top, strlen(top)) == 0;
}

static void open_counter(void) {
    const char *name = getenv("DISK_COUNTER");
    num_calls = &own_calls;
    if (name == NULL) return;
    int file = REAL(open64)(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *shared = MAP_FAILED;
    if (file >= 0 && ftruncate(file, sizeof(long)) == 0)
        shared = mmap(NULL, sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared == MAP_FAILED) abort();
    num_calls = shared;
}

static void note(int *file, const char *name, const char *act, const char *path, const char *other) {
    char line[2 * PATH_MAX + 64];
    if (*file < 0) *file = REAL(open64)(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    int length = snprintf(line, sizeof line, "%s\t%s\t%s\n", act, path, other);
    if (REAL(write)(*file, line, (size_t)length) != length) abort();
}

/* Whether this call is to fail. The lock is held until `end`. */
static int begin(const char *act, const char *path) {
    if (!is_under(path)) return -1;
    pthread_mutex_lock(&one_at_a_time);
    const char *at = getenv("DISK_FAIL_AT"), *lasting = getenv("DISK_LASTING"), *name = getenv("DISK_FAILED");
    if (num_calls == NULL) open_counter();
    long number = __atomic_fetch_add(num_calls, 1, __ATOMIC_SEQ_CST);
    if (at == NULL) return 0;
    if (number == atol(at) || (number > atol(at) && lasting != NULL && lasting[0] == '1')) {
        const char *error = getenv("DISK_ERRNO");
        if (name != NULL) note(&failed, name, act, path, "");
        if (strcmp(error, "KILL") == 0) kill(getpid(), SIGKILL);
        pthread_mutex_unlock(&one_at_a_time);
        errno = atoi(error);
        return 1;
    }
    return 0;
}

static void pause_here(void) {
    const char *name = getenv("DISK_PAUSE");
    char fifo[PATH_MAX], byte = 0;
    if (name == NULL) return;
    snprintf(fifo, sizeof fifo, "%s.at", name);
    int at = REAL(open64)(fifo, O_WRONLY | O_CLOEXEC);
    if (at < 0 || REAL(write)(at, &byte, 1) != 1) abort();
    close(at);
    snprintf(fifo, sizeof fifo, "%s.go", name);
    int go = REAL(open64)(fifo, O_RDONLY | O_CLOEXEC);
    if (go < 0) abort();
    while (read(go, &byte, 1) > 0);
    close(go);
}

static void end(int is_done, const char *act, const char *path, const char *other) {
    int error = errno;
    const char *name = getenv("DISK_RECORD");
    if (is_done && name != NULL) note(&record, name, act, path, other);
    if (is_done && (act[0] == 'r' || act[0] == 'l') && act[1] != 'm') pause_here();
    pthread_mutex_unlock(&one_at_a_time);
    errno = error;
}

/* Keep what was synced under a name that no other process gives. */
static void keep(int file, char *name) {
    const char *folder = getenv("DISK_KEEP");
    char link[64], kept[PATH_MAX];
    struct stat about;
    name[0] = 0;
    if (folder == NULL || fstat(file, &about) != 0 || !S_ISREG(about.st_mode)) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    sprintf(name, "%d-%ld", getpid(), num_kept++);
    snprintf(kept, sizeof kept, "%s/%s", folder, name);
    if (REAL(linkat)(AT_FDCWD, link, AT_FDCWD, kept, AT_SYMLINK_FOLLOW) != 0) abort();
}

#define ACT(full, act, other, call)                        \
    int to_fail = begin(act, full);                        \
    if (to_fail < 0) return call;                          \
    if (to_fail > 0) return -1;                            \
    __typeof__(call) result = call;                        \
    end(result >= 0, act, full, other);                    \
    return result;

ssize_t write(int file, const void *data, size_t size) {
    char full[PATH_MAX];
    path_of(file, full);
    ACT(full, "write", "", REAL(write)(file, data, size))
}
ssize_t writev(int file, const struct iovec *pieces, int number) {
    char full[PATH_MAX];
    path_of(file, full);
    ACT(full, "write", "", REAL(writev)(file, pieces, number))
}
ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    char full[PATH_MAX];
    path_of(file, full);
    ACT(full, "write", "", REAL(pwrite64)(file, data, size, at))
}
int rename(const char *from, const char *to) {
    char full[PATH_MAX], other[PATH_MAX];
    path_at(AT_FDCWD, from, full), path_at(AT_FDCWD, to, other);
    ACT(full, "rename", other, REAL(rename)(from, to))
}
int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    char full[PATH_MAX], other[PATH_MAX];
    path_at(from_folder, from, full), path_at(to_folder, to, other);
    ACT(full, "rename", other, REAL(renameat)(from_folder, from, to_folder, to))
}
int link(const char *from, const char *to) {
    char full[PATH_MAX], other[PATH_MAX];
    path_at(AT_FDCWD, from, full), path_at(AT_FDCWD, to, other);
    ACT(other, "link", full, REAL(link)(from, to))
}
int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
    char full[PATH_MAX], other[PATH_MAX];
    path_at(from_folder, from, full), path_at(to_folder, to, other);
    ACT(other, "link", full, REAL(linkat)(from_folder, from, to_folder, to, flags))
}
int unlink(const char *path) {
    char full[PATH_MAX];
    path_at(AT_FDCWD, path, full);
    ACT(full, "unlink", "", REAL(unlink)(path))
}
int unlinkat(int folder, const char *path, int flags) {
    char full[PATH_MAX];
    path_at(folder, path, full);
    ACT(full, flags & AT_REMOVEDIR ? "rmdir" : "unlink", "", REAL(unlinkat)(folder, path, flags))
}
int rmdir(const char *path) {
    char full[PATH_MAX];
    path_at(AT_FDCWD, path, full);
    ACT(full, "rmdir", "", REAL(rmdir)(path))
}
int mkdir(const char *path, mode_t mode) {
    char full[PATH_MAX];
    path_at(AT_FDCWD, path, full);
    ACT(full, "mkdir", "", REAL(mkdir)(path, mode))
}
int mkdirat(int folder, const char *path, mode_t mode) {
    char full[PATH_MAX];
    path_at(folder, path, full);
    ACT(full, "mkdir", "", REAL(mkdirat)(folder, path, mode))
}

static int synced(int file, int (*sync)(int)) {
    char full[PATH_MAX];
    path_of(file, full);
    int to_fail = begin("sync", full);
    if (to_fail < 0) return sync(file);
    if (to_fail > 0) return -1;
    const char *none = getenv("DISK_NO_SYNC");
    int result = none != NULL && none[0] == '1' ? 0 : sync(file);
    char name[64] = "";
    struct stat about;
    // What has no name any more is lost with the power in any case.
    int counts = result == 0 && (fstat(file, &about) != 0 || about.st_nlink > 0);
    if (counts) keep(file, name);
    end(counts, "sync", full, name);
    return result;
}
int fsync(int file) { return synced(file, REAL(fsync)); }
int fdatasync(int file) { return synced(file, REAL(fdatasync)); }

#define OPENING(name, folder, call)                                                  \
    mode_t mode = 0;                                                                 \
    if (flags & (O_CREAT | __O_TMPFILE)) {                                           \
        va_list rest;                                                                \
        va_start(rest, flags);                                                       \
        mode = va_arg(rest, mode_t);                                                 \
        va_end(rest);                                                                \
    }                                                                                \
    if (!(flags & (O_CREAT | O_TRUNC))) return call;                                 \
    char full[PATH_MAX];                                                             \
    path_at(folder, path, full);                                                     \
    ACT(full, "create", "", call)

int open(const char *path, int flags, ...) { OPENING(open, AT_FDCWD, REAL(open)(path, flags, mode)) }
int open64(const char *path, int flags, ...) { OPENING(open64, AT_FDCWD, REAL(open64)(path, flags, mode)) }
int openat(int folder, const char *path, int flags, ...) {
    OPENING(openat, folder, REAL(openat)(folder, path, flags, mode))
}
int openat64(int folder, const char *path, int flags, ...) {
    OPENING(openat64, folder, REAL(openat64)(folder, path, flags, mode))
}

/* Records every change below one directory, in the order in which the process makes them; loaded with LD_PRELOAD.
 *
 * The trace is a file of records, each written with one O_APPEND write, so that other processes may add markers:
 *
 *     u32 bytes of the whole record | u32 kind | i64 handle | i64 a | i64 b | payload        native byte order
 *
 * One mutex is held over each change and its record, so the order of the records is the order of the changes. A sync
 * has two records, its begin and its end, and other threads go on in between: it covers what was recorded before it
 * began. `handle` numbers the openings of files from 1 on. Paths are relative to the root ("." is the root).
 *
 * What this file does not record but sees (links, splices, shared mappings, ...) is recorded as UNSUPPORTED, and the
 * reader of the trace refuses it: a trace is complete or it is none.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN = 1, WRITE, TRUNCATE, RENAME, UNLINK, MKDIR, RMDIR, SYNC_BEGIN, SYNC_END, MARK, UNSUPPORTED, DROP, KILLED };
enum { FDATASYNC, FSYNC, SYNCFS };
enum { HOOK_CHANGE, HOOK_SYNC }; /* what the hook is told: a change comes, a sync has begun */

#define MAX_FD 65536
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static size_t root_length;
static int trace_fd = -1;
static int64_t handle_of[MAX_FD], next_handle, sync_number;

/* The page cache of a file, kept only after `power_lose`: of each page whether it is cached, whether it is dirty, and
 * what the disk has in its place if a failed write-back has lost it. */
#define PAGE 4096L
#define MAX_PAGES 8192L
struct cache {
    struct cache *next;
    char *path;
    unsigned char dropped[MAX_PAGES], dirty[MAX_PAGES];
    struct { char *data; long size; } lost[MAX_PAGES];
};
static struct cache *caches, *cache_of[MAX_FD];
static int emulates_cache;
#define MAX_MAPS 64
static struct { char *start; size_t size; off_t offset; struct cache *cache; } maps[MAX_MAPS];
static void (*hook)(int);
static long fail_sync_at, fail_write_at, kill_at; /* counted down with each sync, write, change; 0: never */
static long syncs_to_fail = 1;
static int fail_sync_errno = EIO, fail_write_errno = ENOSPC;
static long changes, syncs, writes;

#define REAL(name) __typeof__(name) *real_##name = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static void raw_write(const struct iovec *parts, int count) {
    if (syscall(SYS_writev, trace_fd, parts, count) < 0) {
        static const char text[] = "power shim: the trace cannot be written\n";
        syscall(SYS_write, 2, text, sizeof text - 1);
        abort();
    }
}

static void record(int kind, int64_t handle, int64_t a, int64_t b, const void *payload, size_t size) {
    struct { uint32_t bytes, kind; int64_t handle, a, b; } head = {(uint32_t)(32 + size), (uint32_t)kind, handle, a, b};
    struct iovec parts[2] = {{&head, 32}, {(void *)payload, size}};
    raw_write(parts, size ? 2 : 1);
}

/* The path relative to the root, NULL if it is not below it or nothing is recorded. */
static const char *below(const char *path) {
    if (trace_fd < 0 || path == NULL || strncmp(path, root, root_length) != 0) return NULL;
    if (path[root_length] == 0) return ".";
    return path[root_length] == '/' ? path + root_length + 1 : NULL;
}

static int64_t handle(int fd) { return trace_fd >= 0 && fd >= 0 && fd < MAX_FD ? handle_of[fd] : 0; }

static void call_hook(int what) {
    if (hook != NULL) hook(what);
}

static void unsupported(const char *name) { record(UNSUPPORTED, 0, 0, 0, name, strlen(name)); }

/* Whether the process is to die at this change; counts it. */
static int dies_now(void) { changes++; return kill_at > 0 && --kill_at == 0; }

static void die(void) {
    record(KILLED, 0, 0, 0, NULL, 0);
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

/* --- the page cache after a failed sync --------------------------------------------------------------------------- */

static struct cache *find_cache(const char *name) {
    if (!emulates_cache) return NULL;
    for (struct cache *each = caches; each != NULL; each = each->next)
        if (strcmp(each->path, name) == 0) return each;
    struct cache *made = calloc(1, sizeof *made);
    if (made == NULL || (made->path = strdup(name)) == NULL) abort();
    made->next = caches;
    return caches = made;
}

static struct cache *cache(int fd) { return emulates_cache && handle(fd) ? cache_of[fd] : NULL; }

/* Forget what is cached or lost from page `from` on. */
static void cut_cache(struct cache *of, long from) {
    for (long page = from; of != NULL && page < MAX_PAGES; page++) {
        of->dropped[page] = of->dirty[page] = 0;
        free(of->lost[page].data);
        of->lost[page].data = NULL;
    }
}

#define EACH_PAGE(page, position, size) \
    for (long page = (position) / PAGE; page < MAX_PAGES && page * PAGE < (long)(position) + (long)(size); page++)

static void was_written(struct cache *of, off_t position, size_t size) {
    if (of != NULL) EACH_PAGE(page, position, size) of->dirty[page] = 1, of->dropped[page] = 0;
}

static void was_read(struct cache *of, off_t position, size_t size) {
    if (of != NULL) EACH_PAGE(page, position, size) of->dropped[page] = 0;
}

static void was_synced(struct cache *of) {
    if (of != NULL) memset(of->dirty, 0, sizeof of->dirty);
}

/* Clean pages leave the cache; those that were lost read from now on as what the disk has. */
static void drop(int fd, struct cache *of, off_t position, off_t size) {
    struct stat status;
    if (of == NULL || fstat(fd, &status) != 0) return;
    off_t end = size == 0 ? status.st_size : position + size;
    for (long page = (position + PAGE - 1) / PAGE; page < MAX_PAGES && page * PAGE < status.st_size; page++) {
        off_t stop = (page + 1) * PAGE < status.st_size ? (page + 1) * PAGE : status.st_size;
        if (stop > end || of->dirty[page]) continue;
        of->dropped[page] = 1;
        if (of->lost[page].data == NULL) continue;
        long length = of->lost[page].size < stop - page * PAGE ? of->lost[page].size : stop - page * PAGE;
        char link[64]; /* the descriptor may be for reading only */
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        int writable = (int)syscall(SYS_openat, AT_FDCWD, link, O_RDWR, 0);
        if (syscall(SYS_pwrite64, writable, of->lost[page].data, length, page * PAGE) != length) abort();
        syscall(SYS_close, writable);
        record(DROP, handle_of[fd], page * PAGE, length, of->lost[page].data, (size_t)length);
        free(of->lost[page].data);
        of->lost[page].data = NULL;
    }
}

/* Read what the disk has in place of lost pages: u32 bytes of the path | path | i64 position | u32 bytes | data ... */
void power_lose(const char *file) {
    FILE *in = fopen(file, "r");
    uint32_t size;
    if (in == NULL) abort();
    emulates_cache = 1;
    while (fread(&size, 4, 1, in) == 1) {
        char path[PATH_MAX] = {0};
        int64_t position;
        if (size >= PATH_MAX || fread(path, 1, size, in) != size || fread(&position, 8, 1, in) != 1) abort();
        if (fread(&size, 4, 1, in) != 1 || position / PAGE >= MAX_PAGES) abort();
        char *data = malloc(size + 1);
        if (data == NULL || fread(data, 1, size, in) != size) abort();
        struct cache *of = find_cache(path);
        of->lost[position / PAGE].data = data;
        of->lost[position / PAGE].size = size;
    }
    fclose(in);
}

/* --- control, called by the test process through ctypes ----------------------------------------------------------- */

void power_begin(const char *directory, const char *trace) {
    pthread_mutex_lock(&lock);
    snprintf(root, sizeof root, "%s", directory);
    root_length = strlen(root);
    memset(handle_of, 0, sizeof handle_of);
    next_handle = sync_number = changes = syncs = writes = 0;
    trace_fd = (int)syscall(SYS_openat, AT_FDCWD, trace, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (trace_fd < 0) abort();
    pthread_mutex_unlock(&lock);
}

void power_mark(const char *data, size_t size) {
    pthread_mutex_lock(&lock);
    if (trace_fd >= 0) record(MARK, 0, 0, 0, data, size);
    pthread_mutex_unlock(&lock);
}

void power_hook(void (*function)(int)) { hook = function; }
void power_fail_sync(long at, long how_many, int number) { fail_sync_at = at; syncs_to_fail = how_many; fail_sync_errno = number; }
void power_fail_write(long at, int number) { fail_write_at = at; fail_write_errno = number; }
void power_kill(long at) { kill_at = at; }

__attribute__((constructor)) static void from_environment(void) {
    const char *directory = getenv("POWER_ROOT"), *trace = getenv("POWER_TRACE"), *fails = getenv("POWER_FAIL_SYNC");
    const char *lost = getenv("POWER_LOST");
    if (lost != NULL) power_lose(lost);
    if (directory != NULL && trace != NULL) power_begin(directory, trace);
    if (fails != NULL) fail_sync_at = atol(fails);
}

/* --- names -------------------------------------------------------------------------------------------------------- */

static int opened(int fd, const char *name, int flags, int created) {
    if (fd < 0 || fd >= MAX_FD) return fd;
    handle_of[fd] = ++next_handle;
    cache_of[fd] = find_cache(name);
    if (flags & O_TRUNC) cut_cache(cache_of[fd], 0);
    record(OPEN, next_handle, flags, created, name, strlen(name));
    return fd;
}

static int do_open(int at, const char *path, int flags, mode_t mode) {
    const char *name = at == AT_FDCWD || path[0] == '/' ? below(path) : NULL;
    if (name == NULL) {
        int fd = (int)syscall(SYS_openat, at, path, flags, mode);
        if (fd >= 0 && fd < MAX_FD) handle_of[fd] = 0;
        return fd;
    }
    int changing = flags & (O_CREAT | O_TRUNC);
    if (changing) call_hook(HOOK_CHANGE);
    pthread_mutex_lock(&lock);
    struct stat status;
    int created = (flags & O_CREAT) && stat(path, &status) != 0;
    if ((created || (flags & O_TRUNC)) && dies_now()) die();
    int fd = (int)syscall(SYS_openat, at, path, flags, mode);
    int number = errno;
    opened(fd, name, flags, created);
    pthread_mutex_unlock(&lock);
    errno = number;
    return fd;
}

#define OPENER(name) \
    int name(const char *path, int flags, ...) { \
        va_list rest; va_start(rest, flags); mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); return do_open(AT_FDCWD, path, flags, mode); }
OPENER(open)
OPENER(open64)
#define OPENER_AT(name) \
    int name(int at, const char *path, int flags, ...) { \
        va_list rest; va_start(rest, flags); mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); return do_open(at, path, flags, mode); }
OPENER_AT(openat)
OPENER_AT(openat64)

int close(int fd) {
    if (handle(fd)) {
        pthread_mutex_lock(&lock);
        handle_of[fd] = 0;
        int result = (int)syscall(SYS_close, fd);
        pthread_mutex_unlock(&lock);
        return result;
    }
    return (int)syscall(SYS_close, fd);
}

static int change_name(int kind, const char *path, const char *name, mode_t mode) {
    call_hook(HOOK_CHANGE);
    pthread_mutex_lock(&lock);
    if (dies_now()) die();
    long result = kind == MKDIR ? syscall(SYS_mkdir, path, mode) : kind == RMDIR ? syscall(SYS_rmdir, path) : syscall(SYS_unlink, path);
    int number = errno;
    if (result == 0) record(kind, 0, 0, 0, name, strlen(name));
    if (result == 0 && kind == UNLINK) cut_cache(find_cache(name), 0);
    pthread_mutex_unlock(&lock);
    errno = number;
    return (int)result;
}

int mkdir(const char *path, mode_t mode) {
    const char *name = below(path);
    return name ? change_name(MKDIR, path, name, mode) : (int)syscall(SYS_mkdir, path, mode);
}

int rmdir(const char *path) {
    const char *name = below(path);
    return name ? change_name(RMDIR, path, name, 0) : (int)syscall(SYS_rmdir, path);
}

int unlink(const char *path) {
    const char *name = below(path);
    return name ? change_name(UNLINK, path, name, 0) : (int)syscall(SYS_unlink, path);
}

int rename(const char *old, const char *new) {
    const char *source = below(old), *target = below(new);
    if (source == NULL && target == NULL) return (int)syscall(SYS_rename, old, new);
    call_hook(HOOK_CHANGE);
    pthread_mutex_lock(&lock);
    if (source == NULL || target == NULL) unsupported("rename across the root");
    if (dies_now()) die();
    int result = (int)syscall(SYS_rename, old, new);
    int number = errno;
    if (result == 0 && source != NULL && target != NULL) {
        char both[2 * PATH_MAX];
        size_t size = strlen(source);
        memcpy(both, source, size + 1);
        memcpy(both + size + 1, target, strlen(target));
        record(RENAME, 0, 0, 0, both, size + 1 + strlen(target));
        if (emulates_cache) { /* the new file's pages come with its name: none of them was lost */
            cut_cache(find_cache(source), 0);
            cut_cache(find_cache(target), 0);
        }
    }
    pthread_mutex_unlock(&lock);
    errno = number;
    return result;
}

/* --- data --------------------------------------------------------------------------------------------------------- */

/* One write at `position`, -1 for the file's own position. */
static ssize_t do_write(int fd, const struct iovec *parts, int count, off_t position) {
    call_hook(HOOK_CHANGE);
    size_t size = 0;
    for (int i = 0; i < count; i++) size += parts[i].iov_len;
    char *data = malloc(size + 1);
    if (data == NULL) abort();
    size_t at = 0;
    for (int i = 0; i < count; i++) {
        memcpy(data + at, parts[i].iov_base, parts[i].iov_len);
        at += parts[i].iov_len;
    }
    pthread_mutex_lock(&lock);
    writes++;
    int dies = dies_now(), fails = fail_write_at > 0 && --fail_write_at == 0;
    if (dies || fails) size /= 2;
    if (position < 0) {
        position = fcntl(fd, F_GETFL) & O_APPEND ? lseek(fd, 0, SEEK_END) : lseek(fd, 0, SEEK_CUR);
        lseek(fd, position + (off_t)size, SEEK_SET);
    }
    ssize_t written = size ? syscall(SYS_pwrite64, fd, data, size, position) : 0;
    int number = errno;
    if (written > 0) {
        record(WRITE, handle_of[fd], position, written, data, (size_t)written);
        was_written(cache(fd), position, (size_t)written);
    }
    if (dies) die();
    pthread_mutex_unlock(&lock);
    free(data);
    errno = number;
    if (fails && fail_write_errno) {
        errno = fail_write_errno;
        return -1;
    }
    return written;
}

ssize_t write(int fd, const void *data, size_t size) {
    struct iovec part = {(void *)data, size};
    return handle(fd) ? do_write(fd, &part, 1, -1) : syscall(SYS_write, fd, data, size);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    return handle(fd) ? do_write(fd, parts, count, -1) : syscall(SYS_writev, fd, parts, count);
}

#define PWRITE(name) \
    ssize_t name(int fd, const void *data, size_t size, off_t position) { \
        struct iovec part = {(void *)data, size}; \
        return handle(fd) ? do_write(fd, &part, 1, position) : syscall(SYS_pwrite64, fd, data, size, position); }
PWRITE(pwrite)
PWRITE(pwrite64)
#define PWRITEV(name) \
    ssize_t name(int fd, const struct iovec *parts, int count, off_t position) { \
        return handle(fd) ? do_write(fd, parts, count, position) : syscall(SYS_pwritev, fd, parts, count, position, 0); }
PWRITEV(pwritev)
PWRITEV(pwritev64)
#define PWRITEV2(name) \
    ssize_t name(int fd, const struct iovec *parts, int count, off_t position, int flags) { \
        return handle(fd) ? do_write(fd, parts, count, position) : syscall(SYS_pwritev2, fd, parts, count, position, 0, flags); }
PWRITEV2(pwritev2)
PWRITEV2(pwritev64v2)

static int do_truncate(int fd, off_t size) {
    if (!handle(fd)) return (int)syscall(SYS_ftruncate, fd, size);
    call_hook(HOOK_CHANGE);
    pthread_mutex_lock(&lock);
    if (dies_now()) die();
    int result = (int)syscall(SYS_ftruncate, fd, size);
    int number = errno;
    if (result == 0) {
        record(TRUNCATE, handle_of[fd], size, 0, NULL, 0);
        cut_cache(cache(fd), (size + PAGE - 1) / PAGE);
    }
    pthread_mutex_unlock(&lock);
    errno = number;
    return result;
}
int ftruncate(int fd, off_t size) { return do_truncate(fd, size); }
int ftruncate64(int fd, off_t size) { return do_truncate(fd, size); }

/* --- syncs -------------------------------------------------------------------------------------------------------- */

/* Nothing needs to reach a disk: what a crash would leave is computed from the trace. */
static int do_sync(int fd, int how) {
    call_hook(HOOK_CHANGE);
    pthread_mutex_lock(&lock);
    syncs++;
    if (dies_now()) die();
    int fails = fail_sync_at > 0 && --fail_sync_at == 0;
    if (fails && --syncs_to_fail > 0) fail_sync_at = 1;
    int64_t number = ++sync_number;
    record(SYNC_BEGIN, handle_of[fd], how, number, NULL, 0);
    pthread_mutex_unlock(&lock);
    call_hook(HOOK_SYNC);
    pthread_mutex_lock(&lock);
    record(SYNC_END, 0, fails ? fail_sync_errno : 0, number, NULL, 0);
    if (how == SYNCFS)
        for (struct cache *each = caches; each != NULL; each = each->next) was_synced(each);
    else
        was_synced(cache(fd));
    pthread_mutex_unlock(&lock);
    if (fails) {
        errno = fail_sync_errno;
        return -1;
    }
    return 0;
}

int fdatasync(int fd) { return handle(fd) ? do_sync(fd, FDATASYNC) : (int)syscall(SYS_fdatasync, fd); }
int fsync(int fd) { return handle(fd) ? do_sync(fd, FSYNC) : (int)syscall(SYS_fsync, fd); }
int syncfs(int fd) { return handle(fd) ? do_sync(fd, SYNCFS) : (int)syscall(SYS_syncfs, fd); }

int sync_file_range(int fd, off_t start, off_t size, unsigned flags) { /* promises nothing: not recorded */
    return handle(fd) ? 0 : (int)syscall(SYS_sync_file_range, fd, start, size, flags);
}

static int do_advise(int fd, off_t start, off_t size, int advice) {
    if (handle(fd) && advice == POSIX_FADV_DONTNEED) {
        pthread_mutex_lock(&lock);
        drop(fd, cache(fd), start, size);
        pthread_mutex_unlock(&lock);
    }
    return syscall(SYS_fadvise64, fd, start, size, advice) == 0 ? 0 : errno;
}
int posix_fadvise(int fd, off_t start, off_t size, int advice) { return do_advise(fd, start, size, advice); }
int posix_fadvise64(int fd, off_t start, off_t size, int advice) { return do_advise(fd, start, size, advice); }

/* --- reads: only to know what is cached --------------------------------------------------------------------------- */

ssize_t pread64(int fd, void *data, size_t size, off_t position) {
    was_read(cache(fd), position, size);
    return syscall(SYS_pread64, fd, data, size, position);
}

ssize_t preadv64v2(int fd, const struct iovec *parts, int count, off_t position, int flags) {
    struct cache *of = cache(fd);
    if (of != NULL) {
        size_t size = 0;
        for (int i = 0; i < count; i++) size += parts[i].iov_len;
        if (flags & RWF_NOWAIT)
            EACH_PAGE(page, position, size) if (of->dropped[page]) { errno = EAGAIN; return -1; }
        was_read(of, position, size);
    }
    return syscall(SYS_preadv2, fd, parts, count, position, 0, flags);
}

int mincore(void *address, size_t size, unsigned char *pages) {
    int result = (int)syscall(SYS_mincore, address, size, pages);
    for (int each = 0; result == 0 && each < MAX_MAPS; each++) {
        if (maps[each].cache == NULL || (char *)address < maps[each].start || (char *)address >= maps[each].start + maps[each].size) continue;
        long first = (maps[each].offset + ((char *)address - maps[each].start)) / PAGE;
        for (long page = 0; page * PAGE < (long)size && first + page < MAX_PAGES; page++)
            pages[page] = !maps[each].cache->dropped[first + page];
    }
    return result;
}

int munmap(void *address, size_t size) {
    for (int each = 0; each < MAX_MAPS; each++)
        if (maps[each].start == address) maps[each].cache = NULL, maps[each].start = NULL;
    return (int)syscall(SYS_munmap, address, size);
}

/* --- what would escape the trace ---------------------------------------------------------------------------------- */

#define REFUSED(condition, name) \
    if (condition) { pthread_mutex_lock(&lock); unsupported(name); pthread_mutex_unlock(&lock); }

int link(const char *old, const char *new) { REFUSED(below(new), "link"); return (int)syscall(SYS_link, old, new); }
int symlink(const char *old, const char *new) { REFUSED(below(new), "symlink"); return (int)syscall(SYS_symlink, old, new); }
int truncate(const char *path, off_t size) { REFUSED(below(path), "truncate"); return (int)syscall(SYS_truncate, path, size); }
int truncate64(const char *path, off_t size) { REFUSED(below(path), "truncate"); return (int)syscall(SYS_truncate, path, size); }
int posix_fallocate64(int fd, off_t start, off_t size) {
    REFUSED(handle(fd), "fallocate");
    return syscall(SYS_fallocate, fd, 0, start, size) == 0 ? 0 : errno;
}
ssize_t sendfile64(int out, int in, off_t *start, size_t size) {
    REFUSED(handle(out), "sendfile");
    return syscall(SYS_sendfile, out, in, start, size);
}
ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t size, unsigned flags) {
    REFUSED(handle(out), "copy_file_range");
    return syscall(SYS_copy_file_range, in, from, out, to, size, flags);
}
int dup2(int old, int new) {
    REFUSED(handle(old), "dup2");
    return (int)syscall(SYS_dup2, old, new);
}
void *mmap64(void *address, size_t size, int protection, int flags, int fd, off_t start) {
    REFUSED(fd >= 0 && handle(fd) && (flags & MAP_SHARED) && (protection & PROT_WRITE), "mmap");
    void *mapped = (void *)syscall(SYS_mmap, address, size, protection, flags, fd, start);
    struct cache *of = fd >= 0 && mapped != MAP_FAILED ? cache(fd) : NULL;
    for (int each = 0; of != NULL && each < MAX_MAPS; each++) {
        if (maps[each].cache != NULL) continue;
        maps[each].start = mapped, maps[each].size = size, maps[each].offset = start, maps[each].cache = of;
        break;
    }
    return mapped;
}
FILE *fopen64(const char *path, const char *mode) {
    REFUSED(below(path) && mode[0] != 'r', "fopen");
    REAL(fopen64);
    return real_fopen64(path, mode);
}

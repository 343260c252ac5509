/* A disk whose syncs fail while the file that METAQ_BROKEN_SYNC names exists. Loaded by LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static int broken(void)
{
    const char *path = getenv("METAQ_BROKEN_SYNC");
    int before = errno;
    int found = path && access(path, F_OK) == 0;
    errno = found ? EIO : before;
    return found;
}

#define SYNC(name)                                                  \
    int name(int fd)                                                \
    {                                                               \
        static int (*real)(int);                                    \
        if (broken())                                               \
            return -1;                                              \
        if (!real)                                                  \
            real = (int (*)(int))dlsym(RTLD_NEXT, #name);           \
        return real(fd);                                            \
    }

SYNC(fsync)
SYNC(fdatasync)
SYNC(syncfs)

/* Put before the C library with LD_PRELOAD: while the file that CHAOS_SYNC_FAILS names is there, every sync fails, as it
   does on a disk that goes bad. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static int fails(void) {
    const char *flag = getenv("CHAOS_SYNC_FAILS");
    return flag != NULL && access(flag, F_OK) == 0;
}

static int sync_by(const char *name, int file) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    if (fails()) {
        errno = EIO;
        return -1;
    }
    return real(file);
}

int fsync(int file) { return sync_by("fsync", file); }
int fdatasync(int file) { return sync_by("fdatasync", file); }

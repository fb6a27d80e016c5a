#include "serve/temporary.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char prefix[] = ".tmp-";

int temporary_open(int directory, const char *name, char temporary[TEMPORARY_NAME_BYTES]) {
    snprintf(temporary, TEMPORARY_NAME_BYTES, "%s%ld-%.200s", prefix, (long)getpid(), name);
    for (int tries = 0; tries < 3; tries++) {
        int fd = openat(directory, temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd >= 0) {
            struct stat about;
            if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &about) == 0 && about.st_nlink == 1) return fd;
            close(fd); /* somebody took it for abandoned before it was locked */
            continue;
        }
        if (errno != EEXIST) return -1;
        temporary_remove_abandoned(directory);
    }
    errno = EEXIST;
    return -1;
}

void temporary_remove_abandoned(int directory) {
    int copy = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = copy >= 0 ? fdopendir(copy) : NULL;
    if (!list) {
        if (copy >= 0) close(copy);
        return;
    }
    for (struct dirent *e; (e = readdir(list)) != NULL;) {
        if (strncmp(e->d_name, prefix, sizeof prefix - 1) != 0) continue;
        int fd = openat(directory, e->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0) continue;
        /* its writer may have given it its name meanwhile, and another one begun a file under this one */
        struct stat locked, named;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &locked) == 0 &&
            fstatat(directory, e->d_name, &named, AT_SYMLINK_NOFOLLOW) == 0 && locked.st_ino == named.st_ino)
            (void)unlinkat(directory, e->d_name, 0);
        close(fd);
    }
    closedir(list);
}

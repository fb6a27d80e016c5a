#include "cli/notify.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/platform.h"

void notify_service(const char *lines) {
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t bytes = path ? strlen(path) : 0;
    if (bytes < 2 || bytes >= sizeof address.sun_path || (path[0] != '/' && path[0] != '@')) return;
    memcpy(address.sun_path, path, bytes);
    if (path[0] == '@') address.sun_path[0] = '\0'; /* an abstract name */
    int fd = platform_local_socket(SOCK_DGRAM);
    if (fd < 0) return;
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + bytes);
    (void)!sendto(fd, lines, strlen(lines), MSG_NOSIGNAL, (const struct sockaddr *)&address, length);
    close(fd);
}

/* The service manager that started the program, if one did. */
#ifndef KAKEYA_CLI_NOTIFY_H
#define KAKEYA_CLI_NOTIFY_H

/* Sends lines such as "READY=1" to $NOTIFY_SOCKET, as sd_notify(3) describes; does nothing where there is none. */
void notify_service(const char *lines);

#endif

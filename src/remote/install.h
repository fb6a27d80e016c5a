/* A worker that the system starts and restarts: a unit of the user's systemd, or an agent of launchd. */
#ifndef KAKEYA_REMOTE_INSTALL_H
#define KAKEYA_REMOTE_INSTALL_H

#include "remote/config.h"

typedef enum install_system { INSTALL_SYSTEMD, INSTALL_LAUNCHD } install_system;

/* The one of this machine. */
install_system install_here(void);

/* The text of the unit or agent that runs words[n] (words[0] is an absolute path); malloc'ed. */
kakeya_status install_text(install_system system, const char *const *words, size_t n, char **text, kakeya_error *error);
/* Writes it where the system looks for it. *path: malloc'ed. */
kakeya_status install_write(install_system system, const char *const *words, size_t n, char **path,
                            kakeya_error *error);
/* What the user then types, one line or two. */
const char *install_next_steps(install_system system);

#endif

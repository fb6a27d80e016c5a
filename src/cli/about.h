/* What this build is: its backends, and how it was made. */
#ifndef KAKEYA_CLI_ABOUT_H
#define KAKEYA_CLI_ABOUT_H

#include <stdbool.h>

#include "kakeya.h"

/* `kakeya info --backends`: each backend, what it would compute on, or why it is not used. */
kakeya_status about_backends(bool json, kakeya_error *error);

/* `kakeya --version --verbose`, below the version: build, backends and libraries. */
void about_build(void);

#endif

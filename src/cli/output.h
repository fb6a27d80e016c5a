/* Checks of output paths before the work begins. What a path is (a link, a device, a folder) is the concern of
 * base/files.h; here it is kept from hitting what the same command reads. */
#ifndef KAKEYA_CLI_OUTPUT_H
#define KAKEYA_CLI_OUTPUT_H

#include "base/error.h"

/* Refuses an output that is the input itself or, where the input is a folder (a model), an existing file in it. `input`
 * may be NULL or anything that names no file. `option` names the output in the message. */
kakeya_status output_spares(const char *option, const char *path, const char *input, kakeya_error *error);

/* Refuses two outputs that are one file, also where it does not exist yet. Either path may be NULL. */
kakeya_status output_differs(const char *option, const char *path, const char *other_option, const char *other,
                             kakeya_error *error);

#endif

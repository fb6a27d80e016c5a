/* What `kakeya verify` says to people. */
#ifndef KAKEYA_CLI_VERIFY_PAGE_H
#define KAKEYA_CLI_VERIFY_PAGE_H

#include "measure/report.h"

/* The page on stdout. path: of the report, or NULL. */
kakeya_status verify_print_page(const eval_report *report, const char *path, bool is_signed, kakeya_error *error);

/* "FILE.sig", malloc'ed; NULL when out of memory. */
char *verify_signature_path(const char *report);

#endif

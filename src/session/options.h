/* Options as the library works with them: read as far as both sides know them, with what their zeros stand for. */
#ifndef KAKEYA_SESSION_OPTIONS_H
#define KAKEYA_SESSION_OPTIONS_H

#include "kakeya_study.h"

/* out->study points to *study afterwards, which is all zeros if the caller has none. */
kakeya_status engine_options_read(const kakeya_engine_options *options, kakeya_engine_options *out,
                                  kakeya_study_options *study, kakeya_error *error);

/* options NULL: all defaults. out->sink, out->window and out->draft_window are not 0 afterwards. */
kakeya_status session_options_read(const kakeya_session_options *options, kakeya_session_options *out,
                                   kakeya_error *error);

/* options NULL: all defaults. What is off in out->sampling has its neutral value afterwards. */
kakeya_status generate_options_read(const kakeya_generate_options *options, kakeya_generate_options *out,
                                    kakeya_error *error);

#endif

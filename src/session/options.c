#include "session/options.h"

#include "base/sized.h"

kakeya_status engine_options_read(const kakeya_engine_options *options, kakeya_engine_options *out,
                                  kakeya_study_options *study, kakeya_error *error) {
    KAKEYA_INIT(out);
    KAKEYA_INIT(study);
    kakeya_status status = sized_read("engine options", options, out, sizeof *out, error);
    if (status == KAKEYA_OK && out->study)
        status = sized_read("study options", out->study, study, sizeof *study, error);
    out->study = study;
    return status;
}

kakeya_status session_options_read(const kakeya_session_options *options, kakeya_session_options *out,
                                   kakeya_error *error) {
    KAKEYA_INIT(out);
    kakeya_status status = options ? sized_read("session options", options, out, sizeof *out, error) : KAKEYA_OK;
    if (status != KAKEYA_OK) return status;
    if (out->sink < KAKEYA_NO_SINK)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "sink is %d, must be at least %d", out->sink, KAKEYA_NO_SINK);
    if (out->window < 0)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "window is %d, must be at least 0", out->window);
    if (out->draft_window < 0)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "draft_window is %d, must be at least 0", out->draft_window);
    if (!out->sink) out->sink = KAKEYA_DEFAULT_SINK;
    out->window = kakeya_options_window(out);
    out->draft_window = kakeya_options_draft_window(out);
    return KAKEYA_OK;
}

kakeya_status generate_options_read(const kakeya_generate_options *options, kakeya_generate_options *out,
                                    kakeya_error *error) {
    KAKEYA_INIT(out);
    kakeya_status status = options ? sized_read("generate options", options, out, sizeof *out, error) : KAKEYA_OK;
    if (out->sampling.top_p == 0) out->sampling.top_p = 1;
    if (out->sampling.repetition_penalty == 0) out->sampling.repetition_penalty = 1;
    return status;
}

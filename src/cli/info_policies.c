/* The policies that `kakeya info` tells about. */
#include "cli/info.h"

const info_policy info_policies[INFO_POLICIES] = {
    {"native", KAKEYA_ATTENTION_NATIVE, KAKEYA_RESTORE_SLIDING},
    {"sink-window", KAKEYA_ATTENTION_SINK_WINDOW, KAKEYA_RESTORE_SLIDING},
    {"restored", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_SLIDING},
    {"restored, all layers", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_ALL},
};

bool info_possible(const info_subject *s, const info_policy *policy) {
    return policy->attention != KAKEYA_ATTENTION_RESTORED || s->facts.f_theta_rank > 0;
}

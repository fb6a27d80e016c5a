// Where a step spends its time: every operation computed alone, what it must read and do beside it.
#include "backend/mlx/device.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

using namespace kakeya;

namespace {

double seconds_of(const std::function<mx::array()> &make) {
    auto start = std::chrono::steady_clock::now();
    auto result = make();
    mx::eval(result);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

} // namespace

namespace kakeya {

mx::array measured_alone(const mlx_device *d, const measured_form &form, const std::function<mx::array()> &make) {
    auto result = make();
    mx::eval(result); // and with it all that it is made of
    std::vector<double> samples;
    for (int i = 0; i < d->profile_repeats; i++) samples.push_back(seconds_of(make));
    std::sort(samples.begin(), samples.end());
    auto same = [&](const mlx_profile_row &row) {
        return form.part == row.part && std::strcmp(row.kernel, form.kernel) == 0;
    };
    auto row = std::find_if(d->profile.begin(), d->profile.end(), same);
    if (row == d->profile.end()) {
        if (d->profile.size() == MLX_PROFILE_ROWS) return result;
        mlx_profile_row fresh = {};
        std::snprintf(fresh.kernel, sizeof fresh.kernel, "%s", form.kernel);
        std::snprintf(fresh.part, sizeof fresh.part, "%s", form.part.c_str());
        row = d->profile.insert(d->profile.end(), fresh);
    }
    row->launches++;
    row->seconds += samples[samples.size() / 2];
    row->bytes += form.bytes;
    row->operations += form.operations;
    return result;
}

} // namespace kakeya

void mlx_device_profile(mlx_device *device, int repeats) {
    device->profile_repeats = repeats;
    if (repeats) device->profile.clear();
}

int mlx_device_profiled(const mlx_device *device, mlx_profile_row rows[MLX_PROFILE_ROWS]) {
    std::copy(device->profile.begin(), device->profile.end(), rows);
    return static_cast<int>(device->profile.size());
}

int mlx_empty_run(mlx_device *device, int repeats, double *seconds, mlx_failure *failure) {
    return guarded(failure, [&] {
        mx::StreamContext on(device->stream);
        auto one = mx::array(1.0f);
        *seconds = seconds_of([&] { return one + one; });
        for (int i = 1; i < repeats; i++) *seconds = std::min(*seconds, seconds_of([&] { return one + one; }));
    });
}

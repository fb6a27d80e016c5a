/* What happens when the device cannot: too little memory at opening and in the middle of a session, and a device that
 * is lost. Every failure is a status with one line; what is not concerned goes on. Prints TAP. usage: test_failures
 * every test; the one that loses the device runs in a process of its own test_failures device      exits with 0 if
 * there is a device that the tests can use test_failures lost        that process */
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <spawn.h>
#include <sys/wait.h>
#include <vector>

#include "kakeya_study.h"

extern char **environ;

namespace {

int tests, failures;

void check(bool passed, const char *what, const char *explanation) {
    std::printf("%s %d - %s\n", passed ? "ok" : "not ok", ++tests, what);
    if (passed) return;
    std::printf("# %s\n", explanation);
    failures++;
}

/* A failure as it should be: the status, one line, and these words in it. */
void check_failure(const char *what, kakeya_status status, const kakeya_error &error, kakeya_status expected,
                   const char *words) {
    char text[1400];
    bool one_line = error.message[0] && !std::strchr(error.message, '\n');
    std::snprintf(text, sizeof text, "status %d, expected %d: '%s'", (int)status, (int)expected, error.message);
    check(status == expected && error.status == expected && one_line && std::strstr(error.message, words), what, text);
    std::printf("# %s\n", error.message);
}

kakeya_engine *open_engine(const char *model, const char *synthetic, const char *backend, kakeya_status *status,
                           kakeya_error *error) {
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = model;
    kakeya_study_options study;
    KAKEYA_INIT(&study);
    study.synthetic = synthetic;
    options.study = &study;
    options.backend = backend;
    options.drafter = "none";
    kakeya_engine *engine = nullptr;
    *status = kakeya_engine_open(&options, &engine, error);
    return engine;
}

kakeya_session *open_session(kakeya_engine *engine, kakeya_status *status, kakeya_error *error) {
    kakeya_session_options options;
    KAKEYA_INIT(&options); /* the model's longest context */
    kakeya_session *session = nullptr;
    *status = kakeya_session_open(engine, &options, &session, error);
    return session;
}

std::vector<int32_t> some_tokens(int n) {
    std::vector<int32_t> tokens(n);
    for (int i = 0; i < n; i++) tokens[i] = 100 + i * 37 % 7000;
    return tokens;
}

/* n greedy tokens behind what the session holds. */
std::vector<int32_t> answer(kakeya_session *session, int n, kakeya_status *status, kakeya_error *error) {
    kakeya_generate_options options;
    KAKEYA_INIT(&options);
    options.max_tokens = n;
    options.mode = KAKEYA_MODE_AR;
    options.ignore_stop_tokens = true;
    kakeya_stats stats;
    KAKEYA_INIT(&stats);
    *status = kakeya_session_generate(session, &options, &stats, error);
    size_t length = 0;
    const int32_t *tokens = kakeya_session_tokens(session, &length);
    size_t from = length > (size_t)n ? length - (size_t)n : 0;
    return std::vector<int32_t>(tokens + from, tokens + length);
}

/* Takes the device's memory down to its last granules. */
std::vector<void *> take_memory() {
    std::vector<void *> taken;
    for (size_t bytes = (size_t)8 << 30; bytes >= (size_t)1 << 20;) {
        void *data = nullptr;
        if (cudaMalloc(&data, bytes) == cudaSuccess)
            taken.push_back(data);
        else
            bytes /= 2;
    }
    (void)cudaGetLastError();
    return taken;
}

void give_back(std::vector<void *> &taken) {
    for (void *data : taken) cudaFree(data);
    taken.clear();
}

void memory_at_opening() {
    kakeya_status status;
    kakeya_error error = {};
    std::vector<void *> taken = take_memory();
    kakeya_engine *engine = open_engine(KAKEYA_MODELS "/demo", nullptr, "cuda", &status, &error);
    check_failure("a model that does not fit", status, error, KAKEYA_OUT_OF_MEMORY, "out of device memory: ");
    check(!engine, "leaves no engine", "there is one");
    give_back(taken);
    engine = open_engine(KAKEYA_MODELS "/demo", nullptr, "cuda", &status, &error);
    check(status == KAKEYA_OK, "it opens once there is memory", error.message);
    kakeya_engine_close(engine);
}

void memory_while_growing() {
    enum { FIRST = 500, ALL = 9000, ANSWER = 8 };
    kakeya_status status;
    kakeya_error error = {};
    kakeya_engine *engine = open_engine(nullptr, "26b-a4b:layers=6", "cuda", &status, &error);
    check(status == KAKEYA_OK, "a wide model opens", error.message);
    if (status != KAKEYA_OK) return;
    std::vector<int32_t> tokens = some_tokens(ALL);
    kakeya_session *session = open_session(engine, &status, &error);
    check(status == KAKEYA_OK, "a session of 262,144 tokens takes no memory for tokens that it does not have",
          error.message);
    status = kakeya_session_sync(session, tokens.data(), FIRST, nullptr, nullptr, nullptr, &error);
    check(status == KAKEYA_OK, "a first prompt fits", error.message);
    std::vector<void *> taken = take_memory();
    status = kakeya_session_sync(session, tokens.data(), ALL, nullptr, nullptr, nullptr, &error);
    check_failure("a session that cannot grow", status, error, KAKEYA_OUT_OF_MEMORY, "out of device memory: ");
    kakeya_session *other = open_session(engine, &status, &error);
    check_failure("nor a second session", status, error, KAKEYA_OUT_OF_MEMORY, "out of device memory: ");
    kakeya_session_close(other);
    give_back(taken);
    status = kakeya_session_sync(session, tokens.data(), ALL, nullptr, nullptr, nullptr, &error);
    check(status == KAKEYA_OK, "the same session grows once there is memory", error.message);
    std::vector<int32_t> found = answer(session, ANSWER, &status, &error);
    check(status == KAKEYA_OK, "and answers", error.message);
    other = open_session(engine, &status, &error);
    if (status == KAKEYA_OK) status = kakeya_session_sync(other, tokens.data(), ALL, nullptr, nullptr, nullptr, &error);
    std::vector<int32_t> expected = answer(other, ANSWER, &status, &error);
    check(status == KAKEYA_OK && found == expected, "as a session that has seen no failure does", error.message);
    kakeya_session_close(other);
    kakeya_session_close(session);
    kakeya_engine_close(engine);
}

__global__ void trap_kernel() { __trap(); }

/* A kernel that traps makes every later call of this process on the device fail, as a device that falls off the bus
 * does. */
int device_lost() {
    kakeya_status status;
    kakeya_error error = {};
    std::vector<int32_t> tokens = some_tokens(40);
    kakeya_engine *engine[2];
    kakeya_session *session[2];
    static const char *const backend[2] = {"cpu", "cuda"};
    std::vector<int32_t> before;
    for (int b = 0; b < 2; b++) {
        engine[b] = open_engine(KAKEYA_MODELS "/demo", nullptr, backend[b], &status, &error);
        if (status == KAKEYA_OK) session[b] = open_session(engine[b], &status, &error);
        if (status == KAKEYA_OK)
            status = kakeya_session_sync(session[b], tokens.data(), tokens.size(), nullptr, nullptr, nullptr, &error);
        std::vector<int32_t> first;
        if (status == KAKEYA_OK) first = answer(session[b], 4, &status, &error);
        if (b == 0) before = first;
        check(status == KAKEYA_OK, "answers while the device is there", error.message);
        if (status != KAKEYA_OK) return 1;
    }
    trap_kernel<<<1, 1>>>();
    (void)cudaDeviceSynchronize();
    (void)answer(session[1], 4, &status, &error);
    check_failure("a session whose device is lost", status, error, KAKEYA_BACKEND, ": ");
    (void)answer(session[1], 4, &status, &error);
    check_failure("and again", status, error, KAKEYA_BACKEND, ": ");
    kakeya_session *fork = nullptr;
    status = kakeya_session_fork(session[1], &fork, &error);
    check_failure("its copy", status, error, KAKEYA_BACKEND, ": ");
    const kakeya_write_fn nowhere = [](void *, const void *, size_t) { return true; };
    status = kakeya_session_save(session[1], nowhere, nullptr, &error);
    check_failure("its state, to be saved", status, error, KAKEYA_BACKEND, ": ");
    kakeya_engine *late = open_engine(KAKEYA_MODELS "/demo", nullptr, "cuda", &status, &error);
    check_failure("another engine on it", status, error, KAKEYA_BACKEND, ": ");
    check(!late, "is not there", "there is one");
    kakeya_session_close(session[1]);
    kakeya_engine_close(engine[1]);
    std::vector<int32_t> found = answer(session[0], 8, &status, &error);
    check(status == KAKEYA_OK, "the CPU's session goes on", error.message);
    found.insert(found.begin(), before.begin(), before.end());
    kakeya_session *fresh = open_session(engine[0], &status, &error);
    if (status == KAKEYA_OK)
        status = kakeya_session_sync(fresh, tokens.data(), tokens.size(), nullptr, nullptr, nullptr, &error);
    check(status == KAKEYA_OK && answer(fresh, 12, &status, &error) == found,
          "with the tokens of one that has seen no failure", "they differ");
    kakeya_session_close(fresh);
    kakeya_session_close(session[0]);
    kakeya_engine_close(engine[0]);
    return failures ? 1 : 0;
}

bool device_present() {
    kakeya_status status;
    kakeya_error error = {};
    kakeya_engine *engine = open_engine(KAKEYA_MODELS "/demo", nullptr, "cuda", &status, &error);
    kakeya_engine_close(engine);
    if (status != KAKEYA_OK) std::printf("# %s\n", error.message);
    return status == KAKEYA_OK;
}

void in_a_process_of_its_own(const char *program) {
    char lost[] = "lost";
    char *arguments[] = {const_cast<char *>(program), lost, nullptr};
    pid_t child;
    int status = 0;
    std::fflush(stdout);
    bool ran = posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments, environ) == 0 &&
               waitpid(child, &status, 0) == child;
    char text[64];
    std::snprintf(text, sizeof text, "wait status %d", status);
    check(ran && WIFEXITED(status) && WEXITSTATUS(status) == 0, "a process survives the loss of its device", text);
}

} // namespace

int main(int argc, char **argv) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    if (argc > 1 && std::strcmp(argv[1], "device") == 0) return device_present() ? 0 : 1;
    if (argc > 1 && std::strcmp(argv[1], "lost") == 0) return device_lost();
    if (!device_present()) {
        std::printf("ok 1 - failures of a device # SKIP there is none\n");
        return 0;
    }
    in_a_process_of_its_own(argv[0]);
    memory_at_opening();
    memory_while_growing();
    return failures ? 1 : 0;
}

// How alike texts are: the mean of a model's last hidden states is a vector for each text. kakeya from C++.
//   c++ -std=c++17 embed.cpp $(pkg-config --cflags --libs kakeya) -o embed && ./embed models/demo "a cat" "a dog" "x=1"
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include <kakeya_study.h>

using engine_ptr = std::unique_ptr<kakeya_engine, decltype(&kakeya_engine_close)>;
using session_ptr = std::unique_ptr<kakeya_session, decltype(&kakeya_session_close)>;
using ids_ptr = std::unique_ptr<int32_t, decltype(&kakeya_free)>;

static void check(kakeya_status status, const kakeya_error &error) {
    if (status != KAKEYA_OK) throw std::runtime_error(error.message);
}

static engine_ptr open_engine(const char *model) {
    kakeya_error error{};
    kakeya_engine *engine = nullptr;
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = model;
    check(kakeya_engine_open(&options, &engine, &error), error);
    return engine_ptr(engine, kakeya_engine_close);
}

// The mean of the rows after the final norm, of length 1.
static std::vector<float> embed(const kakeya_engine *engine, kakeya_session *session, const char *text) {
    kakeya_error error{};
    int32_t *ids = nullptr;
    size_t n = 0;
    check(
        kakeya_tokenize(kakeya_engine_tokenizer(engine), text, std::strlen(text), KAKEYA_TEXT_PROMPT, &ids, &n, &error),
        error);
    ids_ptr owner(ids, kakeya_free);
    size_t hidden = static_cast<size_t>(kakeya_engine_hidden_size(engine));
    size_t last = static_cast<size_t>(kakeya_engine_layers(engine)) * n * hidden;
    std::vector<float> states(last + n * hidden), mean(hidden);
    kakeya_score_options options;
    KAKEYA_INIT(&options);
    options.hidden_states = states.data();
    check(kakeya_session_score(session, ids, n, &options, &error), error);
    double norm = 0;
    for (size_t i = 0; i < hidden; i++) {
        for (size_t row = 0; row < n; row++) mean[i] += states[last + row * hidden + i];
        norm += static_cast<double>(mean[i]) * mean[i];
    }
    for (float &value : mean) value /= static_cast<float>(std::sqrt(norm));
    return mean;
}

int main(int argc, char **argv) try {
    if (argc < 4) return std::fprintf(stderr, "usage: embed MODEL-DIRECTORY TEXT TEXT...\n"), 2;
    engine_ptr engine = open_engine(argv[1]);
    kakeya_error error{};
    kakeya_session *opened = nullptr;
    check(kakeya_session_open(engine.get(), nullptr, &opened, &error), error);
    session_ptr session(opened, kakeya_session_close);
    std::vector<float> first = embed(engine.get(), session.get(), argv[2]);
    for (int i = 3; i < argc; i++) {
        std::vector<float> other = embed(engine.get(), session.get(), argv[i]);
        float cosine = 0;
        for (size_t k = 0; k < first.size(); k++) cosine += first[k] * other[k];
        std::printf("%.3f  %s\n", static_cast<double>(cosine), argv[i]);
    }
    return 0;
} catch (const std::exception &failure) {
    return std::fprintf(stderr, "embed: %s\n", failure.what()), 1;
}

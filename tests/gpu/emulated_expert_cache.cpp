/* The cache of experts as C++ for the host (backend/cuda/expert_cache.cu). Protects: behind every lookup each chosen
 * expert's bytes lie where products read them, in passes of every kind and with arenas of every size; tables agree with
 * each other and with what lies in the arena; counts are right; what is copied ahead is the likeliest that is missing,
 * and comes to no slot that products read or the next lookup fills; and what makes room is what the rule says, whose
 * hits are counted by a model of it. Prints the results of its tests as TAP. */
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "backend/cuda/expert_cache.cu"

namespace {

enum { LAYERS = 5, EXPERTS = 24, RANK = 4, GATE_UP = COPY_BYTES + 48, DOWN = 5 * 16, HIDDEN = 264, ROUTER_LD = 272 };

uint64_t random_state = 1;
unsigned random_below(unsigned n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<unsigned>(random_state >> 33) % n;
}

unsigned char byte_of(int layer, int expert, bool down, size_t at) {
    return static_cast<unsigned char>(layer * 97 + expert * 31 + down * 13 + at * 7 + at / 4096);
}

const char *failure;
void expect(bool right, const char *what) {
    if (!right && !failure) failure = what;
}

struct machine {
    std::vector<unsigned char> gate_up[LAYERS], down[LAYERS], arena_gate_up, arena_down;
    std::vector<int> slot_of, owner, order, active, begin;
    std::vector<uint64_t> used;
    std::vector<float> score;
    std::vector<unsigned> scored;
    std::vector<cuda_expert_copy> copies;
    std::vector<float> likely, residual, scale;
    std::vector<cuda_bf16> router;
    cuda_expert_state state;
    cuda_expert_counts counts, expected;
    int active_count;
    cuda_expert_cache c;
    cuda_route route;
    cuda_launch launch;

    explicit machine(int slots)
        : arena_gate_up(static_cast<size_t>(slots) * GATE_UP), arena_down(static_cast<size_t>(slots) * DOWN),
          slot_of(LAYERS * EXPERTS), owner(slots), order(slots), active(EXPERTS), begin(EXPERTS + 1), used(slots),
          score(LAYERS * EXPERTS), scored(LAYERS * EXPERTS), copies(EXPERTS), likely(CUDA_DECODE_ROWS * EXPERTS),
          residual(CUDA_DECODE_ROWS * HIDDEN), scale(HIDDEN), router(EXPERTS * ROUTER_LD), state(), counts(),
          expected(), active_count(0), c(), route(), launch() {
        for (int l = 0; l < LAYERS; l++) {
            gate_up[l].resize(static_cast<size_t>(EXPERTS) * GATE_UP);
            down[l].resize(static_cast<size_t>(EXPERTS) * DOWN);
            for (size_t i = 0; i < gate_up[l].size(); i++)
                gate_up[l][i] = byte_of(l, static_cast<int>(i / GATE_UP), false, i % GATE_UP);
            for (size_t i = 0; i < down[l].size(); i++)
                down[l][i] = byte_of(l, static_cast<int>(i / DOWN), true, i % DOWN);
        }
        c.experts = EXPERTS;
        c.slots = slots;
        c.gate_up_bytes = GATE_UP;
        c.down_bytes = DOWN;
        c.gate_up = arena_gate_up.data();
        c.down = arena_down.data();
        c.slot_of = slot_of.data();
        c.owner = owner.data();
        c.used = used.data();
        c.score = score.data();
        c.scored = scored.data();
        c.order = order.data();
        c.copies = copies.data();
        c.likely = likely.data();
        c.state = &state;
        c.counts = &counts;
        route.active = active.data();
        route.active_count = &active_count;
        route.begin = begin.data();
        route.experts = EXPERTS;
        route.rank = RANK;
        launch.multiprocessors = 3;
        cuda_expert_clear(&launch, &c, LAYERS);
    }

    bool holds(int slot, int layer, int expert) const {
        return !std::memcmp(&arena_gate_up[static_cast<size_t>(slot) * GATE_UP],
                            &gate_up[layer][static_cast<size_t>(expert) * GATE_UP], GATE_UP) &&
               !std::memcmp(&arena_down[static_cast<size_t>(slot) * DOWN],
                            &down[layer][static_cast<size_t>(expert) * DOWN], DOWN);
    }

    void check_tables() const {
        for (int id = 0; id < LAYERS * EXPERTS; id++) {
            int slot = slot_of[id];
            expect(slot == NOWHERE || (slot >= 0 && slot < c.slots && owner[slot] == id),
                   "an expert's slot is its own");
            if (slot >= 0) expect(holds(slot, id / EXPERTS, id % EXPERTS), "a slot holds what its owner is");
        }
        for (int slot = 0; slot < c.slots; slot++)
            expect(owner[slot] == NOWHERE || slot_of[owner[slot]] == slot, "an owner's slot is this one");
    }

    /* The router's answers to `rows` rows, as a double has them; the row's values have any size. */
    std::vector<double> make_outlook(int rows) {
        std::vector<double> best(EXPERTS, -1e30);
        for (float &v : scale) v = 0.5f + static_cast<float>(random_below(100)) / 100;
        for (cuda_bf16 &w : router) w = __float2bfloat16_rn(static_cast<float>(random_below(200)) / 100 - 1).bits;
        for (int r = 0; r < rows; r++) {
            const float size = static_cast<float>(1 + random_below(50));
            double squares = 0, largest = -1e30, logit[EXPERTS] = {};
            for (int k = 0; k < HIDDEN; k++) {
                float v = residual[r * HIDDEN + k] = size * (static_cast<float>(random_below(200)) / 100 - 1);
                squares += static_cast<double>(v) * v;
                for (int e = 0; e < EXPERTS; e++)
                    logit[e] += static_cast<double>(v) * scale[k] * __bfloat162float({router[e * ROUTER_LD + k]});
            }
            for (double &v : logit) {
                v /= std::sqrt(squares / HIDDEN + 1e-6);
                if (v > largest) largest = v;
            }
            for (int e = 0; e < EXPERTS; e++)
                if (logit[e] - largest > best[e]) best[e] = logit[e] - largest;
        }
        return best;
    }

    /* Behind a layer's lookup: an expert of the next one is on its way when this layer's products run. */
    void look_ahead(int layer, int rows) {
        std::vector<double> best = make_outlook(rows);
        std::vector<int> slots(slot_of.begin(), slot_of.begin() + LAYERS * EXPERTS), in_use = active;
        in_use.resize(static_cast<size_t>(active_count));
        cuda_expert_outlook o = {residual.data(), scale.data(), router.data(), ROUTER_LD, HIDDEN, RANK, 1e-6f};
        cuda_expert_predict(&launch, &c, &o, layer + 1, rows);
        cuda_expert_copy_ahead(&launch, &c, gate_up[layer + 1].data(), down[layer + 1].data());
        int right = NOWHERE;
        for (int place = 0; place < RANK && right < 0; place++) {
            int e = NOWHERE;
            for (int k = 0; k < EXPERTS; k++)
                if (best[k] <= 0 && (e < 0 || best[k] > best[e])) e = k;
            if (slots[(layer + 1) * EXPERTS + e] < 0) right = e;
            best[e] = 1;
        }
        guess = state.guess ? state.guess - 1 : NOWHERE;
        guesses += guess >= 0;
        expect(guess < 0 || guess == (layer + 1) * EXPERTS + right, "the guess is the most likely one that is missing");
        if (guess < 0) return;
        expect(state.ahead.expert == guess % EXPERTS && slot_of[guess] == state.ahead.to, "its slot");
        for (int slot : in_use) expect(slot != state.ahead.to, "no slot that products read");
        expected.bytes += GATE_UP + DOWN;
    }

    int guess = NOWHERE, guesses = 0, right_guesses = 0;

    /* One layer of a pass. */
    void fetch(int layer, const std::vector<bool> &chosen, bool prompt, int rows, bool ahead = false) {
        bool placed = prompt || rows > CUDA_DECODE_ROWS;
        int n = 0, slots_before[EXPERTS];
        for (int e = 0; e < EXPERTS; e++) {
            begin[e] = n;
            slots_before[e] = slot_of[layer * EXPERTS + e];
            if (chosen[e]) active[n++] = e;
        }
        begin[EXPERTS] = active_count = n;
        int found = 0, copied_ahead = 0;
        for (int e = 0; e < EXPERTS; e++) {
            int slot = slots_before[e];
            /* where another expert comes to its place, it has to be copied from the host again */
            bool kept = slot >= 0 && !(placed && slot < EXPERTS && slot != e && chosen[slot]);
            bool guessed = kept && chosen[e] && layer * EXPERTS + e == guess;
            right_guesses += guessed;
            copied_ahead += guessed;
            found += chosen[e] && kept && !guessed;
        }
        const int kept_slot = guess >= 0 ? slot_of[guess] : NOWHERE;
        cuda_expert_find(&launch, &c, &route, layer, prompt, rows);
        const bool beside = ahead && !placed; /* in two parts, between which products run */
        cuda_expert_copy_in(&launch, &c, gate_up[layer].data(), beside ? nullptr : down[layer].data());
        if (beside) cuda_expert_copy_in(&launch, &c, nullptr, down[layer].data());
        expected.wanted += static_cast<uint64_t>(n);
        expected.found += static_cast<uint64_t>(found);
        expected.bytes += static_cast<uint64_t>(n - found - copied_ahead) * (GATE_UP + DOWN);
        /* it may still be arriving: nothing else comes there before the next lookup */
        expect(guess < 0 || (slot_of[guess] == kept_slot && owner[kept_slot] == guess), "a guess keeps its slot");
        guess = NOWHERE;
        int at = 0;
        for (int e = 0; e < EXPERTS; e++) {
            if (!chosen[e]) continue;
            int slot = placed ? e : active[at++];
            expect(slot >= 0 && slot < c.slots && holds(slot, layer, e), "a chosen expert is where products read it");
        }
        expect(counts.wanted == expected.wanted && counts.found == expected.found && counts.bytes == expected.bytes,
               "counts");
        check_tables();
        if (beside && layer + 1 < LAYERS) look_ahead(layer, rows);
    }
};

/* A row prefers low numbers, which differ by layer. */
std::vector<bool> choose(int layer, int rows) {
    std::vector<bool> chosen(EXPERTS);
    for (int r = 0; r < rows; r++) {
        std::vector<bool> own(EXPERTS);
        for (int n = 0; n < RANK;) {
            unsigned e =
                (random_below(EXPERTS) * random_below(EXPERTS) / EXPERTS + static_cast<unsigned>(layer) * 5) % EXPERTS;
            if (own[e]) continue;
            own[e] = chosen[e] = true;
            n++;
        }
    }
    return chosen;
}

const int arenas[] = {EXPERTS, EXPERTS + 1, EXPERTS + 17, 3 * EXPERTS, LAYERS *EXPERTS};

void test_passes() {
    static const int row_counts[] = {1, 1, 1, 2, 5, 17, 18, 64};
    for (int slots : arenas) {
        machine m(slots);
        for (int pass = 0; pass < 60; pass++) {
            bool prompt = random_below(6) == 0;
            int rows = row_counts[random_below(8)];
            cuda_expert_order(&m.launch, &m.c);
            for (int layer = 0; layer < LAYERS; layer++) m.fetch(layer, choose(layer, rows), prompt, rows);
        }
        if (slots == LAYERS * EXPERTS) /* a few are copied again, which prompts have driven out of their places */
            expect(m.counts.found * 10 > m.counts.wanted * 7, "all have a slot");
    }
}

/* Guesses of any worth: the routers know nothing of what is chosen. */
void test_ahead() {
    static const int row_counts[] = {1, 1, 2, 17, 18};
    for (int slots : arenas) {
        machine m(slots);
        for (int pass = 0; pass < 40; pass++) {
            bool prompt = random_below(6) == 0;
            int rows = row_counts[random_below(5)];
            cuda_expert_order(&m.launch, &m.c);
            for (int layer = 0; layer < LAYERS; layer++)
                m.fetch(layer, choose(layer, rows), prompt, rows, random_below(8) > 0);
        }
        std::printf("# %d slots: %d guesses, %d of them right\n", slots, m.guesses, m.right_guesses);
        if (slots == 3 * EXPERTS) expect(m.guesses > 20 && m.right_guesses > 2, "some are guessed");
    }
}

/* The rule, as model/expert_store.c has it, on the choices of one row at a time. */
void test_rule() {
    for (int slots : arenas) {
        machine m(slots);
        std::vector<double> score(LAYERS * EXPERTS);
        std::vector<bool> there(LAYERS * EXPERTS);
        int held = 0;
        uint64_t found = 0, wanted = 0;
        for (int pass = 0; pass < 150; pass++) {
            cuda_expert_order(&m.launch, &m.c);
            for (double &s : score) s *= 0.98;
            for (int layer = 0; layer < LAYERS; layer++) {
                std::vector<bool> chosen = choose(layer, 1);
                m.fetch(layer, chosen, false, 1);
                for (int e = 0; e < EXPERTS; e++) {
                    if (!chosen[e]) continue;
                    wanted++;
                    score[layer * EXPERTS + e] += 1;
                    found += there[layer * EXPERTS + e];
                }
                for (int e = 0; e < EXPERTS; e++) {
                    int id = layer * EXPERTS + e, least = -1;
                    if (!chosen[e] || there[id]) continue;
                    for (int k = 0; k < LAYERS * EXPERTS && held == slots; k++) {
                        bool safe = k / EXPERTS == layer && chosen[k % EXPERTS];
                        if (there[k] && !safe && (least < 0 || score[k] < score[least])) least = k;
                    }
                    if (least >= 0) there[least] = false;
                    held += least < 0;
                    there[id] = true;
                }
            }
        }
        double rule = static_cast<double>(found) / wanted, device = static_cast<double>(m.counts.found) / wanted;
        std::printf("# %d slots of %d: %.3f found, by the rule %.3f\n", slots, LAYERS * EXPERTS, device, rule);
        expect(m.counts.wanted == wanted && std::fabs(rule - device) < 0.03, "hits are those of the rule");
    }
}

/* Rows that are no numbers may choose an expert twice. */
void test_twice() {
    machine m(EXPERTS);
    for (int pass = 0; pass < 20; pass++) {
        cuda_expert_order(&m.launch, &m.c);
        for (int layer = 0; layer < LAYERS; layer++) {
            int e = static_cast<int>(random_below(EXPERTS));
            for (int i = 0; i < RANK; i++) m.active[i] = e;
            m.active_count = RANK;
            cuda_expert_find(&m.launch, &m.c, &m.route, layer, false, 1);
            cuda_expert_copy_in(&m.launch, &m.c, m.gate_up[layer].data(), m.down[layer].data());
            for (int i = 0; i < RANK; i++) expect(m.holds(m.active[i], layer, e), "each of the two is there");
        }
    }
    for (int pass = 0; pass < 20; pass++) {
        cuda_expert_order(&m.launch, &m.c);
        for (int layer = 0; layer < LAYERS; layer++) {
            std::vector<bool> chosen = choose(layer, 1);
            int n = 0;
            for (int e = 0; e < EXPERTS; e++)
                if (chosen[e]) m.active[n++] = e;
            m.active_count = n;
            cuda_expert_find(&m.launch, &m.c, &m.route, layer, false, 1);
            cuda_expert_copy_in(&m.launch, &m.c, m.gate_up[layer].data(), m.down[layer].data());
            for (int e = 0, at = 0; e < EXPERTS; e++)
                if (chosen[e]) expect(m.holds(m.active[at++], layer, e), "and what comes later is right");
        }
    }
}

int failed;
void run(int number, const char *name, void (*test)()) {
    failure = nullptr;
    test();
    std::printf("%sok %d - %s\n", failure ? "not " : "", number, name);
    if (failure) std::printf("# %s\n", failure);
    failed += failure != nullptr;
}

} // namespace

int main() {
    std::printf("1..4\n");
    run(1, "passes of every kind", test_passes);
    run(2, "what makes room", test_rule);
    run(3, "an expert chosen twice", test_twice);
    run(4, "copies ahead", test_ahead);
    return failed != 0;
}

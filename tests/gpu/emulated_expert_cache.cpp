/* The cache of experts as C++ for the host (backend/cuda/expert_cache.cu). Protects: behind every lookup each chosen
 * expert's bytes lie where products read them, in passes of every kind and with arenas of every size; tables agree with
 * each other and with what lies in the arena; counts are right; and what makes room is what the rule says, whose hits
 * are counted by a model of it. Prints the results of its tests as TAP. */
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "backend/cuda/expert_cache.cu"

namespace {

enum { LAYERS = 5, EXPERTS = 24, RANK = 4, GATE_UP = COPY_BYTES + 48, DOWN = 5 * 16 };

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
    cuda_expert_state state;
    cuda_expert_counts counts, expected;
    int active_count;
    cuda_expert_cache c;
    cuda_route route;
    cuda_launch launch;

    explicit machine(int slots)
        : arena_gate_up(static_cast<size_t>(slots) * GATE_UP), arena_down(static_cast<size_t>(slots) * DOWN),
          slot_of(LAYERS * EXPERTS), owner(slots), order(slots), active(EXPERTS), begin(EXPERTS + 1), used(slots),
          score(LAYERS * EXPERTS), scored(LAYERS * EXPERTS), copies(EXPERTS), state(), counts(), expected(),
          active_count(0), c(), route(), launch() {
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

    /* One layer of a pass. */
    void fetch(int layer, const std::vector<bool> &chosen, bool prompt, int rows) {
        bool placed = prompt || rows > CUDA_DECODE_ROWS;
        int n = 0, slots_before[EXPERTS];
        for (int e = 0; e < EXPERTS; e++) {
            begin[e] = n;
            slots_before[e] = slot_of[layer * EXPERTS + e];
            if (chosen[e]) active[n++] = e;
        }
        begin[EXPERTS] = active_count = n;
        int found = 0;
        for (int e = 0; e < EXPERTS; e++) {
            int slot = slots_before[e];
            /* where another expert comes to its place, it has to be copied from the host again */
            bool kept = slot >= 0 && !(placed && slot < EXPERTS && slot != e && chosen[slot]);
            found += chosen[e] && kept;
        }
        cuda_expert_find(&launch, &c, &route, layer, prompt, rows);
        cuda_expert_copy_in(&launch, &c, gate_up[layer].data(), down[layer].data());
        expected.wanted += static_cast<uint64_t>(n);
        expected.found += static_cast<uint64_t>(found);
        expected.bytes += static_cast<uint64_t>(n - found) * (GATE_UP + DOWN);
        int at = 0;
        for (int e = 0; e < EXPERTS; e++) {
            if (!chosen[e]) continue;
            int slot = placed ? e : active[at++];
            expect(slot >= 0 && slot < c.slots && holds(slot, layer, e), "a chosen expert is where products read it");
        }
        expect(counts.wanted == expected.wanted && counts.found == expected.found && counts.bytes == expected.bytes,
               "counts");
        check_tables();
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
    std::printf("1..3\n");
    run(1, "passes of every kind", test_passes);
    run(2, "what makes room", test_rule);
    run(3, "an expert chosen twice", test_twice);
    return failed != 0;
}

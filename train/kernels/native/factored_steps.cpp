// One step of Adafactor or CAME over many FP32 matrices on a CPU, written out for its passes over memory.
//
// A matrix is gone through in blocks of rows, whose column sums are added up in the blocks' order: the bits are the same for any number of
// threads. One thread takes all passes of a small matrix, which stays in its L2 meanwhile; all threads share each pass of a large one.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

constexpr int64_t kBlock = 64;        // rows of a block
constexpr int64_t kSpan = 2048;       // columns summed in FP32 before a row's sum is added up in FP64
constexpr int64_t kLarge = 1 << 19;   // elements of a matrix that all threads share

struct Matrix {
    float *weight;
    const float *grad;
    float *moment, *rows, *columns, *residual_rows, *residual_columns;
    int64_t height, width;

    int64_t blocks() const { return (height + kBlock - 1) / kBlock; }
};

// How row and column means move: old * beta + mean of squares * rest + eps.
struct Moving {
    float beta, rest, eps;
};

struct Scratch {
    std::vector<float> partial;           // (blocks, width) column sums of each block
    std::vector<double> squares, weights; // (blocks,) sums of each block
    std::vector<float> row, column;       // factors of 1/sqrt(V), then of 1/sqrt(S)

    void fit(const Matrix &m) {
        partial.resize(m.blocks() * m.width);
        squares.resize(m.blocks());
        weights.resize(m.blocks());
        row.resize(m.height);
        column.resize(m.width);
    }
};

template <class F> void parallel(int64_t threads, int64_t count, F f) {
    std::atomic<int64_t> next{0};
    auto work = [&] {
        for (int64_t i; (i = next++) < count;) f(i);
    };
    std::vector<std::thread> others;
    for (int64_t t = 1; t < std::min(threads, count); t++) others.emplace_back(work);
    work();
    for (auto &other : others) other.join();
}

// Return the sum of a row's values, and where Down add them to the columns. A row gives its value at j; it holds its own pointers, so that
// the loop is one over plain memory, which vectorises. Row after row is what the processor's prefetching follows: four rows at once lost.
template <bool Down, class Row> double sum_row(int64_t width, float *columns, Row row) {
    double total = 0;
    for (int64_t start = 0; start < width; start += kSpan) {
        const int64_t end = std::min(width, start + kSpan);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = start; j < end; j++) {
            const float value = row(j);
            sum += value;
            if (Down) columns[j] += value;
        }
        total += sum;
    }
    return total;
}

// Sum the values of a block's rows; each row's total goes to done(r, total).
template <bool Down, class RowAt, class Done> void sum_block(const Matrix &m, int64_t block, float *columns, RowAt row, Done done) {
    if (Down) std::fill_n(columns, m.width, 0.0f);
    for (int64_t r = block * kBlock; r < std::min(m.height, (block + 1) * kBlock); r++) done(r, sum_row<Down>(m.width, columns, row(r)));
}

// Move a block's row means and keep its column sums.
template <class RowAt> void move_rows(const Matrix &m, Scratch &x, int64_t block, float *rows, const Moving &by, RowAt row) {
    const float rest = by.rest / m.width;
    sum_block<true>(m, block, &x.partial[block * m.width], row, [&](int64_t r, double total) {
        rows[r] = rows[r] * by.beta + float(total) * rest + by.eps;
    });
}

// Move the column means by all blocks' sums, and set the factors: sqrt(mean R / R) times scale, and 1/sqrt(C).
void move_columns(const Matrix &m, Scratch &x, const float *rows, float *columns, const Moving &by, float scale) {
    const float rest = by.rest / m.height;
    for (int64_t block = 1; block < m.blocks(); block++)
        for (int64_t j = 0; j < m.width; j++) x.partial[j] += x.partial[block * m.width + j];
    for (int64_t j = 0; j < m.width; j++) {
        columns[j] = columns[j] * by.beta + x.partial[j] * rest + by.eps;
        x.column[j] = 1 / std::sqrt(columns[j]);
    }
    double sum = 0;
    for (int64_t r = 0; r < m.height; r++) sum += rows[r];
    const float mean = float(sum / m.height);
    for (int64_t r = 0; r < m.height; r++) x.row[r] = scale / std::sqrt(rows[r] / mean);
}

double total(const std::vector<double> &blocks) {
    double sum = 0;
    for (double value : blocks) sum += value;
    return sum;
}

// Move V; scale the row factors so that row * grad * column is the clipped update. Returns the mean square before clipping.
template <class Each> float normalise(const Matrix &m, Scratch &x, const Moving &by, float clip, Each each) {
    each([&](int64_t block) {
        move_rows(m, x, block, m.rows, by, [&](int64_t r) {
            return [grad = m.grad + r * m.width](int64_t j) { return grad[j] * grad[j]; };
        });
    });
    move_columns(m, x, m.rows, m.columns, by, 1);
    const float *column = x.column.data();
    each([&](int64_t block) {
        double sum = 0;
        sum_block<false>(
            m, block, nullptr,
            [&](int64_t r) {
                return [grad = m.grad + r * m.width, column](int64_t j) { return grad[j] * column[j] * (grad[j] * column[j]); };
            },
            [&](int64_t r, double total) { sum += total * x.row[r] * x.row[r]; });
        x.squares[block] = sum;
    });
    const float mean_square = float(total(x.squares) / (double(m.height) * m.width));
    const float shrink = 1 / std::max(std::sqrt(mean_square) / clip, 1.0f);
    for (float &factor : x.row) factor *= shrink;
    return mean_square;
}

// Set each weight of a block to what its row gives for it.
template <class RowAt> void update_block(const Matrix &m, int64_t block, RowAt at) {
    for (int64_t r = block * kBlock; r < std::min(m.height, (block + 1) * kBlock); r++) {
        float *weight = m.weight + r * m.width;
        const auto row = at(r);
#pragma omp simd
        for (int64_t j = 0; j < m.width; j++) weight[j] = row(j, weight[j]);
    }
}

struct Adafactor {
    float rate, least, keep, clip, toward;
    Moving second;

    template <class Each> float operator()(const Matrix &m, Scratch &x, Each each) const {
        float alpha = rate;
        if (least > 0) {
            each([&](int64_t block) {
                double sum = 0;
                sum_block<false>(
                    m, block, nullptr,
                    [&](int64_t r) {
                        return [weight = m.weight + r * m.width](int64_t j) { return weight[j] * weight[j]; };
                    },
                    [&](int64_t, double total) { sum += total; });
                x.weights[block] = sum;
            });
            alpha *= std::max(float(std::sqrt(total(x.weights) / (double(m.height) * m.width))), least);
        }
        const float mean_square = normalise(m, x, second, clip, each), *column = x.column.data();
        each([&](int64_t block) {
            if (m.moment)
                update_block(m, block, [&](int64_t r) {
                    return [=, *this, grad = m.grad + r * m.width, moment = m.moment + r * m.width, row = x.row[r]](int64_t j, float w) {
                        moment[j] += (grad[j] * row * column[j] - moment[j]) * toward;
                        return w * keep - moment[j] * alpha;
                    };
                });
            else
                update_block(m, block, [&](int64_t r) {
                    return [=, *this, grad = m.grad + r * m.width, row = x.row[r] * alpha](int64_t j, float w) {
                        return w * keep - grad[j] * row * column[j];
                    };
                });
        });
        return mean_square;
    }
};

// rate is negative.
struct Came {
    float rate, keep, clip, toward;
    Moving second, instability;

    template <class Each> float operator()(const Matrix &m, Scratch &x, Each each) const {
        const float mean_square = normalise(m, x, second, clip, each), *column = x.column.data();
        each([&](int64_t block) {
            // u - m_new = beta1 (u - m_old): one distance serves the momentum and its instability.
            move_rows(m, x, block, m.residual_rows, instability, [&](int64_t r) {
                return [=, *this, grad = m.grad + r * m.width, moment = m.moment + r * m.width, row = x.row[r]](int64_t j) {
                    const float distance = grad[j] * row * column[j] - moment[j];
                    moment[j] += distance * toward;
                    return distance * distance;
                };
            });
        });
        move_columns(m, x, m.residual_rows, m.residual_columns, instability, rate);
        each([&](int64_t block) {
            update_block(m, block, [&](int64_t r) {
                return [=, *this, moment = m.moment + r * m.width, row = x.row[r]](int64_t j, float w) {
                    return w * keep + moment[j] * row * column[j];
                };
            });
        });
        return mean_square;
    }
};

template <class Rule> void run(const Rule &rule, const Matrix *matrices, int64_t count, float *mean_squares, int64_t threads) {
    std::vector<int64_t> small, large;
    for (int64_t i = 0; i < count; i++)
        (threads > 1 && matrices[i].height * matrices[i].width >= kLarge ? large : small).push_back(i);
    parallel(threads, int64_t(small.size()), [&](int64_t n) {
        thread_local Scratch x;
        const Matrix &m = matrices[small[n]];
        x.fit(m);
        mean_squares[small[n]] = rule(m, x, [&](auto f) {
            for (int64_t block = 0; block < m.blocks(); block++) f(block);
        });
    });
    Scratch x;
    for (int64_t i : large) {
        x.fit(matrices[i]);
        mean_squares[i] = rule(matrices[i], x, [&](auto f) { parallel(threads, matrices[i].blocks(), f); });
    }
}

} // namespace

extern "C" void adafactor_step(const Matrix *matrices, int64_t count, const float *n, float *mean_squares, int64_t threads) {
    run(Adafactor{n[0], n[1], n[2], n[3], n[4], {n[5], n[6], n[7]}}, matrices, count, mean_squares, threads);
}

extern "C" void came_step(const Matrix *matrices, int64_t count, const float *n, float *mean_squares, int64_t threads) {
    run(Came{n[0], n[1], n[2], n[3], {n[4], n[5], n[6]}, {n[7], n[8], n[9]}}, matrices, count, mean_squares, threads);
}

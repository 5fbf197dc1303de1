// What the outputs of a network mean, and how members are combined; all in double precision.

#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

namespace ampsure {

enum class Kind { mse, gaussian, natural, distilled, mixture, evidential, evidential_mixture };

struct Likelihood {
    Kind kind;
    int components;    // of a mixture
    double variance;   // of mse
    double r;          // of evidential components
    bool constrained;  // evidential: v follows from alpha
};

/// Point estimate, systematic and statistical variance, in units of the standardised target.
struct Moments {
    double mean, syst, stat;
};

constexpr double infinity = std::numeric_limits<double>::infinity();

inline double bounded(double x, double limit = 50) { return x < -limit ? -limit : x > limit ? limit : x; }
inline double log_sigmoid(double x) { return std::min(x, 0.0) - std::log1p(std::exp(-std::abs(x))); }
inline double constrained_log_v(double log_excess, double r) { return std::log(2 / r) - log_sigmoid(-log_excess); }

/// log Gamma(alpha + 1/2) - log Gamma(alpha) - log(alpha)/2: eight steps of the recurrence, then DLMF 5.11.8.
inline double log_gamma_ratio(double alpha) {
    double steps = 0;
    for (int i = 0; i < 8; ++i) steps += 0.5 * std::log1p(-0.25 / ((alpha + i + 0.5) * (alpha + i + 0.5)));
    const double x = 1 / (alpha + 8), x2 = x * x;
    return steps - x * (1.0 / 8 - x2 * (1.0 / 192 - x2 * (1.0 / 640 - x2 * (17.0 / 14336 - x2 * 31 / 18432))));
}

/// A mixture of Gaussian or Student-t components.
template <int MOST>
struct Mixture {
    int n;
    bool student;
    double centre[MOST], weight[MOST], log_weight[MOST], variance[MOST], variance_stat[MOST];
    double log_scale2[MOST], precision[MOST], inverse_alpha[MOST], normalization[MOST];

    template <class T>
    Mixture(const Likelihood& likelihood, const T* out)
        : n(likelihood.components), student(likelihood.kind == Kind::evidential_mixture) {
        const T* logit = out + (student ? 3 : 2) * n;
        const double largest = *std::max_element(logit, logit + n);
        double sum = 0;
        for (int i = 0; i < n; ++i) sum += std::exp(logit[i] - largest);
        for (int i = 0; i < n; ++i) {
            centre[i] = out[i];
            log_weight[i] = logit[i] - largest - std::log(sum);
            weight[i] = std::exp(log_weight[i]);
            log_scale2[i] = bounded(out[n + i]);
            variance[i] = std::exp(log_scale2[i]);
            variance_stat[i] = inverse_alpha[i] = normalization[i] = 0;
            if (student) {
                const double log_excess = bounded(out[2 * n + i], 25);
                const double log_v = constrained_log_v(log_excess, likelihood.r);
                variance_stat[i] = std::exp(log_scale2[i] - log_v);
                log_scale2[i] = bounded(log_scale2[i] + log_sigmoid(log_excess) - log_sigmoid(log_v));
                inverse_alpha[i] = 1 / (1 + std::exp(log_excess));
                normalization[i] = log_gamma_ratio(1 / inverse_alpha[i]);
            }
            precision[i] = std::exp(-log_scale2[i]);
        }
    }

    double log_density(int i, double y) const {
        const double d = y - centre[i], half = 0.5 * d * d * precision[i];
        const double body = student ? (1 / inverse_alpha[i] + 0.5) * std::log1p(half * inverse_alpha[i]) : half;
        return log_weight[i] - body - 0.5 * log_scale2[i] + normalization[i];
    }

    /// Logarithm of the density but for a constant, and its derivative.
    std::pair<double, double> at(double y) const {
        double part[MOST], largest = -infinity;
        for (int i = 0; i < n; ++i) largest = std::max(largest, part[i] = log_density(i, y));
        double sum = 0, slope = 0;
        for (int i = 0; i < n; ++i) {
            const double d = y - centre[i], share = std::exp(part[i] - largest);
            double own = -d * precision[i];
            if (student) own *= (1 + 0.5 * inverse_alpha[i]) / (1 + 0.5 * d * d * precision[i] * inverse_alpha[i]);
            sum += share;
            slope += share * own;
        }
        return {largest + std::log(sum), slope / sum};
    }

    /// The highest mode: a mode lies within a width of some centre, where the slope turns from rising to falling; there
    /// bisections and secants in turn.
    double mode() const {
        struct Bracket {
            double low, high, tilt_low, tilt_high, height;
        };
        double grid[9 * MOST], value[9 * MOST], tilt[9 * MOST];
        Bracket bracket[9 * MOST];
        for (int i = 0; i < n; ++i)
            for (int s = 0; s < 9; ++s) grid[9 * i + s] = centre[i] + std::exp(0.5 * log_scale2[i]) * (0.25 * s - 1);
        std::sort(grid, grid + 9 * n);
        int found = 0;
        for (int s = 0; s < 9 * n; ++s) {
            std::tie(value[s], tilt[s]) = at(grid[s]);
            if (s > 0 && tilt[s - 1] > 0 && tilt[s] <= 0)
                bracket[found++] = {grid[s - 1], grid[s], tilt[s - 1], tilt[s], std::max(value[s - 1], value[s])};
        }
        const int kept = std::min(found, n + 1);
        std::partial_sort(bracket, bracket + kept, bracket + found,
                          [](const Bracket& a, const Bracket& b) { return a.height > b.height; });
        double best = centre[0], height = -infinity;
        auto compete = [&](double y) {
            const double h = at(y).first;
            if (h > height) best = y, height = h;
        };
        for (int i = 0; i < n; ++i) compete(centre[i]);
        for (int k = 0; k < kept; ++k) {
            Bracket b = bracket[k];
            double point = b.low;
            for (int step = 0; step < 14; ++step) {
                double share = 0.5;
                if (step % 2) {
                    share = b.tilt_low / (b.tilt_low - b.tilt_high);
                    share = std::isnan(share) ? 0.5 : std::min(std::max(share, 0.0), 1.0);
                }
                point = b.low + share * (b.high - b.low);
                const double slope = at(point).second;
                if (slope > 0)
                    b.low = point, b.tilt_low = slope;
                else
                    b.high = point, b.tilt_high = slope;
            }
            compete(point);
        }
        return best;
    }

    Moments moments() const {
        double mean = 0, syst = 0, stat = 0;
        for (int i = 0; i < n; ++i) mean += weight[i] * centre[i];
        for (int i = 0; i < n; ++i) {
            syst += weight[i] * (variance[i] + (centre[i] - mean) * (centre[i] - mean));
            stat += weight[i] * variance_stat[i];
        }
        return {mode(), syst, stat};
    }
};

/// What one member says: its outputs -> moments.
template <int MOST, class T>
inline Moments interpret(const Likelihood& likelihood, const T* out) {
    switch (likelihood.kind) {
        case Kind::mse:
            return {out[0], likelihood.variance, 0};
        case Kind::gaussian:
            return {out[0], std::exp(bounded(out[1])), 0};
        case Kind::natural: {
            const double variance = std::exp(-bounded(out[1]));
            return {out[0] * variance, variance, 0};
        }
        case Kind::distilled:
            return {out[0], std::exp(bounded(out[1])), std::exp(bounded(out[2]))};
        case Kind::evidential: {
            const double log_variance = bounded(out[1]), log_excess = bounded(out[2], 25);
            const double log_v =
                likelihood.constrained ? constrained_log_v(log_excess, likelihood.r) : bounded(out[3], 25);
            return {out[0], std::exp(log_variance), std::exp(log_variance - log_v)};
        }
        default: {
            const int n = (likelihood.kind == Kind::mixture ? 3 : 4) * likelihood.components;
            if (!std::all_of(out, out + n, [](T value) { return std::isfinite(value); })) {  // a search needs numbers
                constexpr double undefined = std::numeric_limits<double>::quiet_NaN();
                return {undefined, undefined, undefined};
            }
            return Mixture<MOST>(likelihood, out).moments();
        }
    }
}

enum class Systematic { averaged, inverse_variance, held_out };

/// Members (n), `stride` apart, into one.
inline Moments combine(const Moments* member, int n, int stride, Systematic systematic) {
    double mean = 0, syst = 0, stat = 0;
    if (systematic == Systematic::averaged) {
        for (int e = 0; e < n; ++e) mean += member[e * stride].mean, syst += member[e * stride].syst;
        mean /= n, syst /= n;
    } else {
        double precision = 0;
        for (int e = 0; e < n; ++e) {
            const Moments& m = member[e * stride];
            precision += 1 / m.syst;
            mean += m.mean / m.syst;
        }
        syst = 1 / precision, mean *= syst;
    }
    double squares = 0, within = 0;
    for (int e = 0; e < n; ++e) {
        const Moments& m = member[e * stride];
        const double distance = m.mean - mean, share = syst / m.syst;
        const double square = systematic == Systematic::held_out && n > 1 ? share * share : 1.0 / n;
        squares += square, stat += square * distance * distance, within += square * m.stat;
    }
    if (systematic == Systematic::held_out && n > 1) stat /= std::max(1 - squares, 1e-12);
    return {mean, syst, stat + within};
}

/// Unbiased variance of the predictions of two or more members, `stride` apart.
inline double spread(const Moments* member, int n, int stride) {
    double mean = 0, squares = 0;
    for (int e = 0; e < n; ++e) mean += member[e * stride].mean / n;
    for (int e = 0; e < n; ++e) squares += (member[e * stride].mean - mean) * (member[e * stride].mean - mean);
    return squares / (n - 1);
}

/// Variance told by pairs of neighbours, `step` standard deviations to both sides of a network: first all of one side.
inline double spread_of_neighbours(const Moments* member, int n, int stride, double step) {
    double squares = 0;
    for (int e = 0; e < n / 2; ++e) {
        const double slope = (member[e * stride].mean - member[(e + n / 2) * stride].mean) / (2 * step);
        squares += slope * slope;
    }
    return squares / (n / 2);
}

}  // namespace ampsure

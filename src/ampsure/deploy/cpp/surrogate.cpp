// From momenta to amplitudes with uncertainties, as ampsure's own `predict`: features, earlier stages and the way back
// to amplitudes in double precision, the last networks in the precision of the surrogate that was exported.

#include <new>

#include "ampsure_surrogate.h"
#include "likelihood.h"
#include "network.h"

namespace ampsure {

enum class Inputs { invariants, folded, momenta, momenta_and_invariants };
enum class Target { log, asinh };

struct Stage {
    Network network;
    Likelihood likelihood;
    double scale, limit;
    Network neighbours;
};

}  // namespace ampsure

#include "model.h"

#ifndef AMPSURE_WEIGHTS
#define AMPSURE_WEIGHTS "weights.bin"
#endif
#ifdef __APPLE__
#define AMPSURE_SECTION ".section __DATA,__const\n"
#define AMPSURE_SYMBOL "_ampsure_weights"
#else
#define AMPSURE_SECTION ".section .rodata\n"
#define AMPSURE_SYMBOL "ampsure_weights"
#endif
asm(AMPSURE_SECTION ".balign 64\n" AMPSURE_SYMBOL ":\n.incbin \"" AMPSURE_WEIGHTS "\"\n.byte 0\n.text\n");
extern "C" __attribute__((visibility("hidden"))) const unsigned char ampsure_weights[];

using namespace ampsure;

namespace {

using model::Real;

constexpr int block = 240;  // points at a time: a multiple of the rows of all tiles and of eight
constexpr int pairs = model::legs * (model::legs - 1) / 2;
constexpr int calibrated = model::features + 2;
constexpr double undefined = std::numeric_limits<double>::quiet_NaN();
constexpr bool in_double = model::n_stages || model::neighbours.members;
/// Whether sigma_stat is another one outside the domain, where errors of the members need not be independent.
constexpr bool wary = model::doubt > 0 && !model::doubt_everywhere;

/// Where component k of leg j of point i stands.
struct Momenta {
    const double* data;
    std::size_t point, leg, component;
};

struct Outputs {
    double *amplitude, *sigma_syst, *sigma_stat, *sigma_tot;
    bool* in_domain;
};

inline Doubles sqrt(Doubles x) {
    for (int i = 0; i < 8; ++i) x[i] = __builtin_sqrt(x[i]);
    return x;
}

}  // namespace

struct alignas(64) ampsure_surrogate {
    double momentum[model::legs][4][block];
    double raw[model::raw_features][block];
    Real x[block * model::features];
    double x_double[in_double ? block * model::features : 1];
    Real seen[model::calibrated ? block * calibrated : 1];
    alignas(64) Real a[block * model::widest];
    alignas(64) Real b[block * model::widest];
    alignas(64) double a_double[in_double ? block * model::widest : 1];
    alignas(64) double b_double[in_double ? block * model::widest : 1];
    Moments member[std::size_t(block) * model::most_members];
    Moments moments[block];
    double offset[block], correction[block], alone[block];
    bool valid[block], inside[block];

    void predict(const Momenta& momenta, std::size_t first, int points, bool domain);
    void write(const Outputs& outputs, std::size_t first, int points) const;

  private:
    void load(const Momenta& momenta, std::size_t first, int points);
    void check_cuts(int points);
    void fold(int points);
    void features(int points);
    void standardize(int points);
    void earlier(int points);
    void doubt(const Network& network, const Network& neighbours, const Likelihood& likelihood, double scale, int points);
    void calibrate(int points);
};

void ampsure_surrogate::load(const Momenta& momenta, std::size_t first, int points) {
    const int lanes = (points + 7) / 8 * 8;
    for (int i = 0; i < lanes; ++i) valid[i] = true;
    for (int j = 0; j < model::legs; ++j)
        for (int k = 0; k < 4; ++k) {
            const double* source = momenta.data + first * momenta.point + j * momenta.leg + k * momenta.component;
            double* target = momentum[j][k];
            for (int i = 0; i < points; ++i) {
                target[i] = source[i * momenta.point];
                valid[i] &= std::isfinite(target[i]);
            }
            for (int i = points; i < lanes; ++i) target[i] = target[0];
        }
}

void ampsure_surrogate::check_cuts(int points) {
    constexpr int n = model::n_jets + model::n_photons;
    for (int i = 0; i < points; ++i) {
        double pt[n + 1], eta[n + 1], phi[n + 1];
        for (int m = 0; m < n; ++m) {
            const auto& p = momentum[model::separated[m]];
            pt[m] = std::sqrt(p[1][i] * p[1][i] + p[2][i] * p[2][i]);
            eta[m] = std::asinh(p[3][i] / pt[m]);
            phi[m] = std::atan2(p[2][i], p[1][i]);
            const bool jet = m < model::n_jets;
            inside[i] &= std::abs(eta[m]) < (jet ? model::eta_jet : model::eta_photon);
            inside[i] &= !jet || pt[m] > model::pt_jet;
            for (int l = 0; l < m; ++l) {
                double turn = std::abs(phi[m] - phi[l]);
                turn = std::min(turn, 2 * M_PI - turn);
                const double rise = eta[m] - eta[l];
                inside[i] &= std::sqrt(rise * rise + turn * turn) > model::delta_r;
            }
        }
        std::sort(pt + model::n_jets, pt + n, [](double a, double b) { return a > b; });
        for (int m = 0; m < model::n_photons; ++m) inside[i] &= pt[model::n_jets + m] > model::pt_photon[m];
    }
}

/// Identical legs in an order of their own: outgoing ones by energy in the rest frame of the collision, then two
/// identical incoming ones such that the first outgoing leg is nearer to the second.
void ampsure_surrogate::fold(int points) {
    auto product = [&](int leg, const double (&q)[4], int i) {
        const auto& p = momentum[leg];
        return p[0][i] * q[0] + p[1][i] * q[1] + p[2][i] * q[2] + p[3][i] * q[3];
    };
    auto exchange = [&](int one, int other, int i) {
        for (int k = 0; k < 4; ++k) std::swap(momentum[one][k][i], momentum[other][k][i]);
    };
    for (int i = 0; i < points; ++i) {
        double total[4] = {};
        for (int k = 0; k < 4; ++k) {
            for (int j = 0; j < model::incoming; ++j) total[k] += momentum[j][k][i];
            if (k) total[k] = -total[k];
        }
        const int* group = model::group_legs;
        for (int g = 0; g < model::n_groups; group += model::group_sizes[g++]) {
            double energy[model::legs];
            for (int m = 0; m < model::group_sizes[g]; ++m) {
                energy[m] = product(group[m], total, i);
                for (int l = m; l > 0 && energy[l] > energy[l - 1]; --l) {
                    std::swap(energy[l], energy[l - 1]);
                    exchange(group[l], group[l - 1], i);
                }
            }
        }
        if (model::exchange_incoming) {
            const auto& p = momentum[2];
            const double leg[4] = {p[0][i], -p[1][i], -p[2][i], -p[3][i]};
            if (product(0, leg, i) < product(1, leg, i)) exchange(0, 1, i);
        }
    }
}

void ampsure_surrogate::features(int points) {
    constexpr bool vectors = model::inputs == Inputs::momenta || model::inputs == Inputs::momenta_and_invariants;
    if constexpr (vectors)
        for (int j = 0; j < model::legs; ++j)
            for (int k = 0; k < 4; ++k) std::copy(momentum[j][k], momentum[j][k] + block, raw[4 * j + k]);
    if constexpr (model::inputs == Inputs::momenta) return;
    double(*column)[block] = raw + (vectors ? 4 * model::legs : 0);
    for (int i = 0; i < points; i += 8) {
        auto at = [&](int leg, int k) { return *reinterpret_cast<const Doubles*>(&momentum[leg][k][i]); };
        Doubles magnitude[model::legs], energy[model::legs], direction[model::legs][3];
        const Doubles tiny = splat<Doubles>(std::numeric_limits<double>::min());
        for (int j = 0; j < model::legs; ++j) {
            const Doubles square = at(j, 1) * at(j, 1) + at(j, 2) * at(j, 2) + at(j, 3) * at(j, 3);
            magnitude[j] = sqrt(square);
            const double mass2 = model::mass[j] * model::mass[j];
            energy[j] = mass2 ? sqrt(magnitude[j] * magnitude[j] + mass2) : magnitude[j];
            const Doubles inverse = 1.0 / (magnitude[j] > tiny ? magnitude[j] : tiny);
            for (int k = 0; k < 3; ++k) direction[j][k] = at(j, k + 1) * inverse;
        }
        int pair = 0;
        for (int j = 0; j < model::legs; ++j)
            for (int l = j + 1; l < model::legs; ++l, ++pair) {
                Doubles distance = {};
                for (int k = 0; k < 3; ++k) {
                    const Doubles d = direction[j][k] - direction[l][k];
                    distance += d * d;
                }
                const Doubles both = magnitude[j] * magnitude[l];
                Doubles value = both * distance / 2.0;
                if (model::mass[j] || model::mass[l]) {
                    const double one = model::mass[j] * model::mass[j], other = model::mass[l] * model::mass[l];
                    const Doubles massive = one * energy[l] * energy[l] + other * magnitude[j] * magnitude[j];
                    value += massive / (energy[j] * energy[l] + both);
                }
                *reinterpret_cast<Doubles*>(&column[pair][i]) = ampsure::log(value);
            }
    }
}

void ampsure_surrogate::standardize(int points) {
    for (int f = 0; f < model::raw_features; ++f)
        for (int i = 0; i < points; ++i) inside[i] &= raw[f][i] >= model::low[f] && raw[f][i] <= model::high[f];
    for (int h = 0; h < model::n_holes; ++h) {
        const double* column = raw[model::hole_columns[h]];
        for (int i = 0; i < points; ++i) inside[i] &= column[i] <= model::hole_low[h] || column[i] >= model::hole_high[h];
    }
    for (int f = 0; f < model::features; ++f) {
        const double* column = raw[model::columns[f]];
        for (int i = 0; i < points; ++i) {
            const double value = (column[i] - model::mean[f]) / model::scale[f];
            valid[i] &= std::isfinite(value);
            x[i * model::features + f] = Real(value);
            if (in_double) x_double[i * model::features + f] = value;
        }
    }
    for (int i = 0; i < points; ++i)
        if (!valid[i]) {  // its answer is not a number; until then anything that is one
            std::fill_n(x + i * model::features, model::features, Real(0));
            if (in_double) std::fill_n(x_double + i * model::features, model::features, 0.0);
        }
}

namespace {

template <class T>
const T* weights_of(const Network& network, int member) {
    return reinterpret_cast<const T*>(ampsure_weights + network.offset) + member * network.size<T>();
}

/// The members' moments, (members, block).
template <class T>
void evaluate(const Network& network, const Likelihood& likelihood, const T* x, int points, T* a, T* b,
              Moments* moments) {
    const int stride = padded(network.widths[network.layers]);
    for (int e = 0; e < network.members; ++e) {
        const T* out = forward<model::activation, model::residual>(network, weights_of<T>(network, e), x,
                                                                   network.widths[0], points, a, b);
        for (int i = 0; i < points; ++i)
            moments[e * block + i] = interpret<model::most_components>(likelihood, out + i * stride);
    }
}

inline double held(double value, double limit) { return value < -limit ? -limit : value > limit ? limit : value; }

}  // namespace

void ampsure_surrogate::earlier(int points) {
    std::fill_n(offset, points, 0.0);
    std::fill_n(alone, points, 0.0);
    for (int s = 0; s < model::n_stages; ++s) {
        const Stage& stage = model::stages[s];
        evaluate(stage.network, stage.likelihood, x_double, points, a_double, b_double, member);
        for (int i = 0; i < points; ++i) {
            const double mean = combine(member + i, stage.network.members, block, model::systematic).mean;
            offset[i] += stage.scale * held(mean, stage.limit);
        }
        doubt(stage.network, stage.neighbours, stage.likelihood, stage.scale, points);
    }
}

/// Adds the statistical variance of a single network of a stage, whose members have just been evaluated.
void ampsure_surrogate::doubt(const Network& network, const Network& neighbours, const Likelihood& likelihood,
                              double scale, int points) {
    if (!(model::doubt > 0)) return;
    if (neighbours.members) evaluate(neighbours, likelihood, x_double, points, a_double, b_double, member);
    for (int i = 0; i < points; ++i)
        alone[i] += scale * scale *
                    (neighbours.members
                         ? spread_of_neighbours(member + i, neighbours.members, block, model::neighbour_step)
                         : spread(member + i, network.members, block));
}

/// The systematic variance times a factor learned from held-out events, a shift of the mean, a scale of both sigmas.
void ampsure_surrogate::calibrate(int points) {
    const Network& network = model::calibration;
    for (int i = 0; i < points; ++i)
        for (int f = 0; f < network.widths[0]; ++f) {
            const int column = model::calibration_columns[f];
            double value;
            if (column < model::features)
                value = x[i * model::features + column];
            else {
                const bool syst = column == model::features;
                value = std::log(std::max(syst ? moments[i].syst : moments[i].stat, 1e-30));
                value = std::min(std::max(value, model::calibration_low[!syst]), model::calibration_high[!syst]);
            }
            seen[i * network.widths[0] + f] = Real((value - model::calibration_mean[f]) / model::calibration_scale[f]);
        }
    double inverse[block] = {};
    for (int e = 0; e < network.members; ++e) {
        const Real* out = forward<model::activation, model::residual>(network, weights_of<Real>(network, e), seen,
                                                                      network.widths[0], points, a, b);
        for (int i = 0; i < points; ++i) inverse[i] += std::exp(-bounded(out[i * padded(1)]));
    }
    for (int i = 0; i < points; ++i) {
        moments[i].syst *= network.members / inverse[i];
        correction[i] = model::calibration_shift * std::sqrt(moments[i].syst + moments[i].stat);
        moments[i].syst *= model::calibration_factor * model::calibration_factor;
        moments[i].stat *= model::calibration_factor * model::calibration_factor;
    }
}

void ampsure_surrogate::predict(const Momenta& momenta, std::size_t first, int points, bool domain) {
    load(momenta, first, points);
    std::fill_n(inside, points, true);
    if (model::has_cuts && (domain || wary)) check_cuts(points);
    if (model::inputs == Inputs::folded) fold((points + 7) / 8 * 8);
    features(points);
    standardize(points);
    earlier(points);
    evaluate(model::network, model::likelihood, x, points, a, b, member);
    for (int i = 0; i < points; ++i) moments[i] = combine(member + i, model::network.members, block, model::systematic);
    doubt(model::network, model::neighbours, model::likelihood, model::last_scale, points);
    if constexpr (model::has_sigma) {
        const Real* out = forward<model::activation, model::residual>(
            model::sigma, weights_of<Real>(model::sigma, 0), x, model::features, points, a, b);
        for (int i = 0; i < points; ++i) moments[i].syst = std::exp(bounded(out[i * padded(1)]));
    }
    std::fill_n(correction, points, 0.0);
    if constexpr (model::calibrated) calibrate(points);
    for (int n = 0; n < model::n_noisy; ++n) {
        const int f = model::noise_columns[n];
        for (int i = 0; i < points; ++i) {
            const double value = (raw[model::columns[f]][i] - model::mean[f]) / model::scale[f];
            if (value > model::noise_low[n] && value <= model::noise_high[n])
                moments[i].syst += model::noise_variance[n] / (model::last_scale * model::last_scale);
        }
    }
    for (int i = 0; i < points; ++i) {
        Moments& m = moments[i];
        const double single = model::doubt * alone[i] / (model::last_scale * model::last_scale);
        if (model::doubt_everywhere) m.stat += single;
        if (wary && !inside[i]) m.stat = std::max(m.stat, single);
        const double y = offset[i] + model::last_scale * (held(m.mean, model::last_limit) + correction[i]);
        // nobody can know less than the spread of all amplitudes
        auto variance = [](double v) {
            return std::min(model::last_scale * model::last_scale * v, 1.0) * model::target_scale * model::target_scale;
        };
        m = {model::target_mean + model::target_scale * y, variance(m.syst), variance(m.stat)};
        // from the logarithm of the mean to the mean of the logarithm
        if (model::unbiased) m.mean -= std::min(m.syst + m.stat, model::largest_noise) / 2;
        if (!valid[i]) m = {undefined, undefined, undefined}, inside[i] = false;
    }
}

/// Back to amplitudes, with the exact moments of a Gaussian in the transformed target.
void ampsure_surrogate::write(const Outputs& outputs, std::size_t first, int points) const {
    for (int i = 0; i < points; ++i) {
        const Moments& m = moments[i];
        const double shift = (m.syst + m.stat) / 2;
        double amplitude;
        if constexpr (model::target == Target::log)
            amplitude = std::exp(m.mean + shift);
        else
            amplitude = model::target_unit * std::exp(shift) * std::sinh(m.mean);
        auto sigma = [&](double variance) {
            if constexpr (model::target == Target::log) return amplitude * std::sqrt(std::expm1(variance));
            const double inner = std::exp(variance) * std::cosh(2 * m.mean) + 1;
            return model::target_unit * std::sqrt(std::expm1(variance) * inner / 2);
        };
        if (outputs.amplitude) outputs.amplitude[first + i] = amplitude;
        if (outputs.sigma_syst) outputs.sigma_syst[first + i] = sigma(m.syst);
        if (outputs.sigma_stat) outputs.sigma_stat[first + i] = sigma(m.stat);
        if (outputs.sigma_tot) outputs.sigma_tot[first + i] = sigma(m.syst + m.stat);
        if (outputs.in_domain) outputs.in_domain[first + i] = inside[i];
    }
}

namespace {

void run(ampsure_surrogate& surrogate, const Momenta& momenta, std::size_t count, const Outputs& outputs) {
    for (std::size_t first = 0; first < count; first += block) {
        const int points = int(std::min<std::size_t>(block, count - first));
        surrogate.predict(momenta, first, points, outputs.in_domain);
        surrogate.write(outputs, first, points);
    }
}

enum Status { success, error, not_implemented, unsupported_input, unsupported_output, unsupported_meta, missing_input };
constexpr bool input_flags[] = {true, true, true, true, true, true};
constexpr bool required_flags[] = {true, false, false, false, false, false};
constexpr bool output_flags[] = {true, true, true, true, true};

template <int N>
int tell(const bool (&all)[N], bool const** flags, int* count) {
    if (!flags || !count) return error;
    *flags = all, *count = N;
    return success;
}

}  // namespace

#define AMPSURE_PUBLIC __attribute__((visibility("default")))
extern "C" {

AMPSURE_PUBLIC ampsure_surrogate* ampsure_create(void) { return new (std::nothrow) ampsure_surrogate; }
AMPSURE_PUBLIC void ampsure_destroy(ampsure_surrogate* handle) { delete handle; }

AMPSURE_PUBLIC int ampsure_predict(ampsure_surrogate* handle, size_t count, const double* momenta, double* amplitude,
                                   double* sigma_syst, double* sigma_stat, double* sigma_tot, bool* in_domain) {
    if (!handle || (!momenta && count)) return error;
    const Outputs outputs = {amplitude, sigma_syst, sigma_stat, sigma_tot, in_domain};
    run(*handle, {momenta, 4 * model::legs, 4, 1}, count, outputs);
    return success;
}

AMPSURE_PUBLIC const char* ampsure_process(void) { return model::process; }
AMPSURE_PUBLIC const char* ampsure_unit(void) { return model::unit; }
AMPSURE_PUBLIC int ampsure_legs(void) { return model::legs; }
AMPSURE_PUBLIC int ampsure_incoming(void) { return model::incoming; }
AMPSURE_PUBLIC int ampsure_members(void) { return model::network.members; }
AMPSURE_PUBLIC const int* ampsure_pdg_ids(void) { return model::pdg_ids; }
AMPSURE_PUBLIC const double* ampsure_masses(void) { return model::mass; }

AMPSURE_PUBLIC int umami_get_meta(int key, void* result) {
    constexpr int values[] = {0, model::legs, 1, 1, 1};
    if (key < 0 || key > 4) return unsupported_meta;
    if (!result) return error;
    *static_cast<int*>(result) = values[key];
    return success;
}

AMPSURE_PUBLIC int umami_supported_inputs(bool const** flags, int* count) { return tell(input_flags, flags, count); }
AMPSURE_PUBLIC int umami_required_inputs(bool const** flags, int* count) { return tell(required_flags, flags, count); }
AMPSURE_PUBLIC int umami_supported_outputs(bool const** flags, int* count) { return tell(output_flags, flags, count); }

AMPSURE_PUBLIC int umami_initialize(void** handle, char const*) {
    if (!handle) return error;
    *handle = ampsure_create();
    return *handle ? success : error;
}

AMPSURE_PUBLIC int umami_set_parameter(void*, char const*, double, double) { return not_implemented; }
AMPSURE_PUBLIC int umami_get_parameter(void*, char const*, double*, double*) { return not_implemented; }

AMPSURE_PUBLIC int umami_matrix_element(void* handle, size_t count, size_t stride, size_t offset, size_t input_count,
                                        int const* input_keys, void const* const* inputs, size_t output_count,
                                        int const* output_keys, void* const* outputs) {
    if (!handle || (input_count && !(input_keys && inputs)) || (output_count && !(output_keys && outputs)))
        return error;
    const double* momenta = nullptr;
    for (size_t n = 0; n < input_count; ++n) {
        if (input_keys[n] < 0 || input_keys[n] >= int(sizeof input_flags)) return unsupported_input;
        if (input_keys[n] == 0) momenta = static_cast<const double*>(inputs[n]);
    }
    for (size_t n = 0; n < output_count; ++n)
        if (output_keys[n] < 0 || output_keys[n] >= int(sizeof output_flags)) return unsupported_output;
    if (!momenta) return missing_input;
    if (offset > stride || count > stride - offset) return error;
    for (size_t n = 0; n < output_count; ++n) {
        if (!outputs[n]) return error;
        if (output_keys[n] >= 2) std::fill_n(static_cast<int*>(outputs[n]) + offset, count, 0);
    }
    const Momenta where = {momenta + offset, 1, stride, stride * model::legs};
    const double* known = nullptr;
    for (size_t n = 0; n < output_count; ++n) {
        if (output_keys[n] > 1) continue;
        double* target = static_cast<double*>(outputs[n]) + offset;
        if (known)
            std::copy(known, known + count, target);
        else
            run(*static_cast<ampsure_surrogate*>(handle), where, count, {target, {}, {}, {}, {}});
        known = target;
    }
    return success;
}

AMPSURE_PUBLIC int umami_free(void* handle) {
    if (!handle) return error;
    ampsure_destroy(static_cast<ampsure_surrogate*>(handle));
    return success;
}
}

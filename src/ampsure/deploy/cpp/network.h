// Perceptrons on vectors of the machine's own width, for GCC and Clang.
//
// Weights of a layer lie in panels of 32 outputs, each panel (inputs, 32), so that the inner loop reads them in order;
// the outputs are filled up to a multiple of 16 with zeros.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace ampsure {

#if defined(__AVX512F__)
constexpr int vector_bytes = 64, accumulators = 24;
#elif defined(__AVX__)
constexpr int vector_bytes = 32, accumulators = 12;
#else
constexpr int vector_bytes = 16, accumulators = 12;
#endif
constexpr int panel = 32, padding = 16;

template <class T>
struct Vector {
    typedef T type __attribute__((vector_size(vector_bytes), may_alias));
    static constexpr int lanes = vector_bytes / sizeof(T);
};
template <class T>
using V = typename Vector<T>::type;

typedef double Doubles __attribute__((vector_size(64), may_alias));  // eight points at once, on any machine
typedef int64_t Integers __attribute__((vector_size(64), may_alias));

template <class D>
inline D splat(double value) {
    return D{} + value;
}

/// sum of c[k] x^k
template <class D, class T, std::size_t N>
inline D polynomial(const T (&c)[N], D x) {
    D sum = D{} + c[N - 1];
#pragma GCC unroll 32
    for (int k = int(N) - 2; k >= 0; --k) sum = sum * x + c[k];
    return sum;
}

/// exp(x) for -708 <= x <= 0, to 2e-16.
template <class D>
inline D exp_negative(D x) {
    typedef int64_t I __attribute__((vector_size(sizeof(D)), may_alias));
    static constexpr double series[] = {1.0,        1.0,         1.0 / 2,       1.0 / 6,        1.0 / 24,
                                        1.0 / 120,  1.0 / 720,   1.0 / 5040,    1.0 / 40320,    1.0 / 362880,
                                        1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800.0};
    const double magic = 0x1.8p52;  // adding it rounds to an integer, which then stands in the last bits
    D shifted = x * 0x1.71547652b82fep0 + magic;
    D n = shifted - magic;
    D r = (x - n * 0x1.62e42fefa3800p-1) - n * 0x1.ef35793c76730p-45;
    D e = polynomial(series, r);
    return (D)((I)e + ((I)shifted << 52));
}

/// log(x), to 2e-16 of the larger of 1 and the result.
inline Doubles log(Doubles x) {
    static constexpr double series[] = {2.0,      2.0 / 3,  2.0 / 5,  2.0 / 7,  2.0 / 9, 2.0 / 11,
                                        2.0 / 13, 2.0 / 15, 2.0 / 17, 2.0 / 19, 2.0 / 21};
    Integers bits = (Integers)x;
    Integers exponent = (bits - 0x3fe6a09e667f3bcdLL) >> 52;  // such that the rest is between 1/sqrt(2) and sqrt(2)
    Doubles rest = (Doubles)(bits - (exponent << 52));
    Doubles n = __builtin_convertvector(exponent, Doubles);
    Doubles s = (rest - 1.0) / (rest + 1.0);
    Doubles value = n * 0x1.62e42fefa3800p-1 + (n * 0x1.ef35793c76730p-45 + s * polynomial(series, s * s));
    for (int i = 0; i < 8; ++i)
        if (!(x[i] >= 0x1p-1000 && x[i] <= 0x1p1000)) value[i] = std::log(x[i]);
    return value;
}

// x times the normal distribution function Phi(x): a rational function of x^2, to 6e-9 and rounding.
inline V<float> gelu(V<float> x) {
    static constexpr float p[] = {0x1.988450p-2f,  0x1.116006p-5f,  0x1.30cb04p-8f,
                                  0x1.589492p-13f, 0x1.aace4ap-18f, 0x1.91cb6ap-26f};
    static constexpr float q[] = {1.0f,            0x1.005282p-2f,  0x1.d0f1d2p-6f,
                                  0x1.e74d3cp-10f, 0x1.2fa67ap-14f, 0x1.46947cp-20f};
    const V<float> edge = V<float>{} + 5.4f;
    V<float> c = x < -edge ? -edge : x;
    c = c > edge ? edge : c;
    V<float> t = c * c;
    V<float> phi = c * polynomial(p, t) / polynomial(q, t) + 0.5f;
    return x * phi;
}

// The same from exp(u^2) erfc(u) (1 + 2 u), a polynomial of (u - 4)/(u + 4), to 1e-16: Shepherd and Laframboise,
// Math. Comp. 36 (1981) 249.
inline V<double> gelu(V<double> x) {
    static constexpr double c[] = {
        0x1.3ba5916e9fd7fp+0,  -0x1.1df1ad154a28fp-3,  0x1.f7f5df66fd6a7p-7,  0x1.16ecefcfa540ep-4,
        -0x1.9ddb23c3e8874p-4, 0x1.7fee004e112c3p-4,   -0x1.0fb06dfe56142p-4, 0x1.3079edf6aa5a8p-5,
        -0x1.096238828c1cbp-6, 0x1.49c6727af5d87p-8,   -0x1.8d4a9c3d62797p-11, -0x1.a1df1e2a70512p-13,
        0x1.3be068698b9ccp-13, -0x1.9959f4cc5a01cp-16, -0x1.788ca4d342b82p-17, 0x1.7f2d5af276b00p-18,
        0x1.3b713b970cad2p-22, -0x1.bb2bbabb02ec5p-21, 0x1.40eafd5947706p-24, 0x1.d8b4353ca5555p-24,
        -0x1.353a87be1712dp-26, -0x1.e432644b5660ap-27, 0x1.00cd8e2f991c3p-29, 0x1.5b62d008c2d94p-30};
    const V<double> zero = V<double>{}, far = zero + 26.0;
    V<double> u = (x < zero ? -x : x) * 0x1.6a09e667f3bcdp-1;
    u = u > far ? far : u;
    V<double> tail = exp_negative(-u * u) * polynomial(c, (u - 4.0) / (u + 4.0)) / (1.0 + 2.0 * u);  // erfc(u)
    return 0.5 * x * (x < zero ? tail : 2.0 - tail);
}

enum class Activation { gelu, silu, tanh, relu, leaky_relu, softplus };

template <Activation activation, class T>
inline V<T> activate(V<T> x) {
    if constexpr (activation == Activation::gelu) return gelu(x);
    for (int i = 0; i < Vector<T>::lanes; ++i) {
        const T y = x[i];
        if constexpr (activation == Activation::silu) x[i] = y / (1 + std::exp(-y));
        if constexpr (activation == Activation::tanh) x[i] = std::tanh(y);
        if constexpr (activation == Activation::relu) x[i] = y > 0 ? y : 0;
        if constexpr (activation == Activation::leaky_relu) x[i] = y > 0 ? y : T(0.01) * y;
        if constexpr (activation == Activation::softplus) x[i] = y > 20 ? y : std::log1p(std::exp(y));
    }
    return x;
}

/// What becomes of the sums of a layer.
enum class Role { hidden, residual, last };

/// ROWS points times NV vectors of outputs, all sums in registers: in (ROWS, depth), w (depth, width), out (ROWS, ...).
template <Activation activation, class T, int ROWS, int NV>
__attribute__((noinline)) void tile(const T* w, int width, const T* bias, const T* in, std::size_t in_stride, int depth,
                                    T* out, std::size_t out_stride, const T* skip, Role role) {
    constexpr int lanes = Vector<T>::lanes;
    constexpr int parts = ROWS > 1 ? 1 : 8 / NV;  // sums of one point, to hide the latency of an addition
    V<T> sum[ROWS * parts][NV] = {};
    int k = 0;
    for (; k + parts <= depth; k += parts) {
#pragma GCC unroll 8
        for (int part = 0; part < parts; ++part, w += width) {
            V<T> weight[NV];
#pragma GCC unroll 8
            for (int v = 0; v < NV; ++v) weight[v] = *reinterpret_cast<const V<T>*>(w + v * lanes);
#pragma GCC unroll 24
            for (int row = 0; row < ROWS; ++row) {
                const T value = in[row * in_stride + k + part];
#pragma GCC unroll 8
                for (int v = 0; v < NV; ++v) sum[row * parts + part][v] += weight[v] * value;
            }
        }
    }
    for (; k < depth; ++k, w += width)
        for (int v = 0; v < NV; ++v) sum[0][v] += *reinterpret_cast<const V<T>*>(w + v * lanes) * in[k];
#pragma GCC unroll 24
    for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) {
            V<T> total = sum[row * parts][v];
#pragma GCC unroll 8
            for (int part = 1; part < parts; ++part) total += sum[row * parts + part][v];
            total += *reinterpret_cast<const V<T>*>(bias + v * lanes);
            if (role != Role::last) total = activate<activation, T>(total);
            if (role == Role::residual) total += *reinterpret_cast<const V<T>*>(skip + row * out_stride + v * lanes);
            *reinterpret_cast<V<T>*>(out + row * out_stride + v * lanes) = total;
        }
}

constexpr int padded(int width) { return (width + padding - 1) / padding * padding; }

/// One layer for all points of a block: in (points, in_stride), out (points, padded(n_out)).
template <Activation activation, class T>
inline void layer(const T* weights, int n_in, int n_out, const T* in, std::size_t in_stride, T* out, int points,
                  Role role) {
    constexpr int lanes = Vector<T>::lanes;
    const int all = padded(n_out);
    const T* bias = weights + std::size_t(n_in) * all;
    auto sweep = [&](auto vectors, int first, int width) {
        constexpr int NV = decltype(vectors)::value, ROWS = accumulators / NV;
        const T* w = weights + std::size_t(n_in) * first;
        for (int at = 0; at < width; at += NV * lanes, w += NV * lanes) {
            const int column = first + at;
            int row = 0;
            // a single output is summed in several parts, as in torch: so both round alike
            for (; n_out > 1 && row + ROWS <= points; row += ROWS)
                tile<activation, T, ROWS, NV>(w, width, bias + column, in + row * in_stride, in_stride, n_in,
                                              out + row * all + column, all, in + row * in_stride + column, role);
            for (; row < points; ++row)
                tile<activation, T, 1, NV>(w, width, bias + column, in + row * in_stride, in_stride, n_in,
                                           out + row * all + column, all, in + row * in_stride + column, role);
        }
    };
    int first = 0;
    for (; first + panel <= all; first += panel)
        sweep(std::integral_constant<int, std::min(4, panel / lanes)>{}, first, panel);
    if (first < all) sweep(std::integral_constant<int, std::min(4, padding / lanes)>{}, first, padding);
}

/// A stack of perceptrons of one shape.
struct Network {
    std::size_t offset;  // of its weights in the data, in bytes
    int members, layers;
    const int* widths;  // layers + 1 of them

    template <class T>
    std::size_t size() const {  // of one member
        std::size_t n = 0;
        for (int k = 0; k < layers; ++k) n += std::size_t(widths[k] + 1) * padded(widths[k + 1]);
        return n;
    }
};

/// The outputs (points, padded) of one member for x (points, stride); `a` and `b` have room for any layer.
template <Activation activation, bool residual, class T>
const T* forward(const Network& network, const T* weights, const T* x, std::size_t stride, int points, T* a, T* b) {
    const T* in = x;
    for (int k = 0; k < network.layers; ++k) {
        const int n_in = network.widths[k], n_out = network.widths[k + 1];
        const bool last = k + 1 == network.layers, skips = residual && k > 0 && n_in == n_out;
        layer<activation>(weights, n_in, n_out, in, stride, a, points,
                          last ? Role::last : skips ? Role::residual : Role::hidden);
        weights += std::size_t(n_in + 1) * padded(n_out);
        in = a;
        stride = padded(n_out);
        std::swap(a, b);
    }
    return in;
}

}  // namespace ampsure

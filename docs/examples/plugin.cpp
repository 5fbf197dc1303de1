// Reads events from the standard input, E px py pz of all legs of an event on one line, and prints the squared
// amplitude with its uncertainty, or asks for the exact one where the surrogate is not to be trusted.
//
//   c++ -std=c++17 plugin.cpp -I a -L a -lampsure_surrogate -Wl,-rpath,$PWD/a -o plugin

#include <cstdio>
#include <iostream>
#include <memory>
#include <vector>

#include "ampsure_surrogate.h"

int main() {
    const std::unique_ptr<ampsure_surrogate, void (*)(ampsure_surrogate*)> handle(ampsure_create(), ampsure_destroy);
    if (!handle) return 1;
    std::printf("# %s, %d legs, %d networks\n", ampsure_process(), ampsure_legs(), ampsure_members());
    std::vector<double> momenta(4 * ampsure_legs());
    for (;;) {
        for (double& component : momenta) std::cin >> component;
        if (!std::cin) return 0;
        double amplitude, sigma;
        bool in_domain;
        if (ampsure_predict(handle.get(), 1, momenta.data(), &amplitude, nullptr, nullptr, &sigma, &in_domain)) return 1;
        if (in_domain && sigma < 0.5 * amplitude)
            std::printf("%.17g %.17g\n", amplitude, sigma);
        else
            std::printf("ask for the exact amplitude\n");
    }
}

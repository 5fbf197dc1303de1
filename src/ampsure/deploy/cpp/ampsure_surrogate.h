/* An amplitude surrogate written by ampsure: a squared amplitude with its uncertainties, for every phase-space point.
 *
 * Two interfaces to the same library:
 *   ampsure_*  arrays of momenta in, amplitudes and uncertainties out;
 *   umami_*    the matrix-element interface of MadGraph 7, which knows no uncertainties.
 *
 * A handle is the memory of one thread: several threads may compute at once, each with a handle of its own. The library
 * reads no files and keeps no other state. Momenta are (E, px, py, pz) in GeV, incoming legs first.
 */

#ifndef AMPSURE_SURROGATE_H
#define AMPSURE_SURROGATE_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ampsure_surrogate ampsure_surrogate;

/* A new handle, or NULL if there is no memory; and its end. */
ampsure_surrogate* ampsure_create(void);
void ampsure_destroy(ampsure_surrogate* handle);

/* Predictions for momenta[count][legs][4], in order of memory; every output has room for `count` numbers or is NULL.
 *
 *   amplitude   the mean of the predicted density of the squared amplitude
 *   sigma_syst  standard deviation that would stay with more training events
 *   sigma_stat  standard deviation that would go away with them
 *   sigma_tot   both combined, with their interaction
 *   in_domain   false where the surrogate has to extrapolate: trust neither number there
 *
 * A point with a momentum that is not finite, or with two legs exactly collinear, gives NaN and false.
 * Returns 0, or 1 if handle or momenta are NULL.
 */
int ampsure_predict(ampsure_surrogate* handle, size_t count, const double* momenta, double* amplitude,
                    double* sigma_syst, double* sigma_stat, double* sigma_tot, bool* in_domain);

/* What the surrogate is of. Texts are UTF-8; arrays have one number for each leg. */
const char* ampsure_process(void);
const char* ampsure_unit(void);
int ampsure_legs(void);
int ampsure_incoming(void);
int ampsure_members(void);
const int* ampsure_pdg_ids(void);
const double* ampsure_masses(void);

/* UMAMI, the Unified MAtrix eleMent Interface. All functions return a status:
 *   0 success, 1 error, 2 not implemented, 3 unsupported input, 4 unsupported output, 5 unsupported metadata,
 *   6 missing input.
 *
 * Metadata: 0 device (0, a CPU), 1 particles, 2 diagrams, 3 helicities, 4 colours. A surrogate is a sum over all of the
 * last three, which it therefore counts as one each.
 *
 * Inputs: 0 momenta (double, required). 1 alpha_s, 2 flavour index, 3 random colour, 4 random helicity and 5 random
 * diagram are taken and ignored: the couplings are those of the training events.
 * Outputs: 0 matrix element (double), 1 squared diagrams (double; the matrix element again), 2 colour, 3 helicity and
 * 4 diagram index (int; always 0).
 *
 * The event index runs fastest: component k of particle j of event i stands at
 * inputs[..][offset + i + stride * (j + particles * k)], a number of event i at outputs[..][offset + i].
 *
 * The matrix element is the amplitude of ampsure_predict, also where there were no training events.
 *
 * A surrogate has no parameters: the card is not read, and none can be set.
 */
int umami_get_meta(int key, void* result);
int umami_supported_inputs(bool const** flags, int* count);
int umami_required_inputs(bool const** flags, int* count);
int umami_supported_outputs(bool const** flags, int* count);
int umami_initialize(void** handle, char const* param_card_path);
int umami_set_parameter(void* handle, char const* name, double real, double imaginary);
int umami_get_parameter(void* handle, char const* name, double* real, double* imaginary);
int umami_matrix_element(void* handle, size_t count, size_t stride, size_t offset, size_t input_count,
                         int const* input_keys, void const* const* inputs, size_t output_count, int const* output_keys,
                         void* const* outputs);
int umami_free(void* handle);

#ifdef __cplusplus
}
#endif

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Trains on images, going on where it stopped. Build: cc train_images.c $(pkg-config --cflags --libs larder) */
#include <larder.h>
#include <stdio.h>
#include <stdlib.h>
static double train_step(const float *pixels, size_t per_image, const int64_t *labels, uint32_t n)
{
    double loss = 0; /* stands for the network; pixels [n, 3, 64, 64] are borrowed until the release */
    for (uint32_t i = 0; i < n; i++)
        loss += (double)labels[i] - (double)pixels[i * per_image + 42];
    return loss;
}
int main(int argc, char **argv)
{
    struct larder_output out[] = {LARDER_OUTPUT_INIT, LARDER_OUTPUT_INIT};
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_loader_stats st = {.struct_size = sizeof st};
    struct larder_error err = {.message = "wanted: PATH|s3://BUCKET/PREFIX EPOCHS STATE-FILE [STEPS]"};
    char state[LARDER_STATE_MAX];
    long steps = argc == 5 ? atol(argv[4]) : -1;
    struct larder_dataset *ds = NULL;
    struct larder_loader *ld = NULL;
    const struct larder_batch *b;
    FILE *f = argc > 3 ? fopen(argv[3], "r") : NULL; /* of an earlier run */
    out[0].field = "image", out[0].prep = LARDER_PREP_IMAGE, out[1].field = "label";
    out[0].image = (struct larder_image){.width = 64, .flip = 0.5, .dtype = "float32", .planar = 1};
    o.outputs = out, o.n_outputs = 2, o.batch_size = 32, o.seed = 1, o.epochs = argc > 3 ? strtoull(argv[2], NULL, 10) : 1;
    if (f && fgets(state, sizeof state, f) && fclose(f) == 0)
        o.state = state;
    int rc = argc < 4 || larder_dataset_open(argv[1], NULL, &ds, &err) || larder_loader_open(ds, &o, &ld, &err) ? -1
             : larder_loader_stats(ld, &st, &err); /* which epoch it is */
    for (double loss = 0; rc >= 0 && steps && st.epoch < o.epochs; st.epoch++, loss = 0) {
        for (; steps && (rc = larder_loader_next(ld, &b, &err)) == LARDER_OK; steps--, larder_batch_release(b))
            loss += train_step(b->arrays[0].data, b->arrays[0].len / b->n / sizeof(float), b->arrays[1].data, b->n);
        printf("epoch %d: loss %.3f\n", (int)st.epoch, loss);
    }
    rc = rc < 0 || larder_loader_state(ld, state, sizeof state, &err) || !(f = fopen(argv[3], "w")) || fputs(state, f) < 0 || fclose(f);
    larder_loader_close(ld), larder_dataset_close(ds);
    return rc && fprintf(stderr, "train_images: %s\n", err.message) ? 1 : 0;
}

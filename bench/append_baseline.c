/* The baseline of bench/storage.py: the same bytes, written by the least program that could do it.
 *
 * usage: append_baseline FILE APPENDS BYTES SYNC_EVERY SEGMENT_BYTES -> seconds on stdout
 * One writev of a header and a payload per append into a preallocated file, fdatasync after every SYNC_EVERY appends
 * (0: never), a new file when one is full.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int begin(const char *path, int number, long segment) {
    char name[4096];
    snprintf(name, sizeof name, "%s.%d", path, number);
    int file = open(name, O_CREAT | O_RDWR | O_TRUNC, 0600);
    if (file < 0 || posix_fallocate(file, 0, segment)) { perror(name); exit(1); }
    return file;
}

int main(int argc, char **argv) {
    if (argc != 6) { fprintf(stderr, "usage: append_baseline FILE APPENDS BYTES SYNC_EVERY SEGMENT_BYTES\n"); return 2; }
    long appends = atol(argv[2]), bytes = atol(argv[3]), every = atol(argv[4]), segment = atol(argv[5]);
    char *payload = malloc((size_t)bytes), header[76];
    memset(payload, '7', (size_t)bytes);
    memset(header, 1, sizeof header);
    struct iovec parts[2] = {{header, sizeof header}, {payload, (size_t)bytes}};
    double start = now();
    int number = 0, file = begin(argv[1], number, segment);
    long at = 0;
    for (long n = 1; n <= appends; n++) {
        if (at + bytes + (long)sizeof header > segment) {
            if (every) fdatasync(file);
            close(file);
            file = begin(argv[1], ++number, segment);
            at = 0;
        }
        memcpy(header, &n, sizeof n);
        if (pwritev(file, parts, 2, at) != bytes + (long)sizeof header) { perror("pwritev"); return 1; }
        at += bytes + (long)sizeof header;
        if (every && n % every == 0 && fdatasync(file)) { perror("fdatasync"); return 1; }
    }
    if (every) fdatasync(file);
    printf("%.6f\n", now() - start);
    return 0;
}

/* What the load programs have in common: broker_load.c and peers/load.c.
 *
 * The clock, NAME=VALUE arguments, files read whole, numbers in network order, and latencies in a histogram.
 */
#ifndef LOAD_COMMON_H
#define LOAD_COMMON_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define SECOND 1000000000LL

static inline uint16_t get16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }
static inline uint32_t get32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return __builtin_bswap32(v);
}
static inline uint64_t get64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return __builtin_bswap64(v);
}
static inline void put16(uint8_t *p, uint16_t v) {
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}
static inline void put32(uint8_t *p, uint32_t v) {
    v = __builtin_bswap32(v);
    memcpy(p, &v, 4);
}
static inline void put64(uint8_t *p, uint64_t v) {
    v = __builtin_bswap64(v);
    memcpy(p, &v, 8);
}

__attribute__((noreturn)) static inline void fail(const char *what) {
    perror(what);
    exit(1);
}

static inline void *allocate(size_t bytes) {
    void *p = calloc(1, bytes);
    if (!p) fail("calloc");
    return p;
}

static inline int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * SECOND + t.tv_nsec;
}

static inline double own_cpu_seconds(void) {
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
}

static inline uint8_t *read_whole(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) fail(path);
    *bytes = (size_t)ftell(file);
    rewind(file);
    uint8_t *data = allocate(*bytes + 1);
    if (fread(data, 1, *bytes, file) != *bytes) fail(path);
    fclose(file);
    return data;
}

/* Of NAME=VALUE among the arguments; without it, `otherwise`; if that is NULL, it has to be there. */
static inline const char *value_of(int argc, char **argv, const char *name, const char *otherwise) {
    size_t n = strlen(name);
    for (int k = 1; k < argc; k++)
        if (!strncmp(argv[k], name, n) && argv[k][n] == '=') return argv[k] + n + 1;
    if (!otherwise) {
        const char *program = program_invocation_short_name;
        fprintf(stderr, "%s: %s=... is missing; the head of %s.c has the list\n", program, name, program);
        exit(2);
    }
    return otherwise;
}

/* Latencies in buckets that are 1/64 of their value wide, so that nothing is sorted and memory stays small. */
enum { FINE = 64, BUCKETS = 40 * FINE };

typedef struct {
    uint64_t count, buckets[BUCKETS];
} Histogram;

static inline int bucket_of(int64_t ns) {
    if (ns < FINE) return ns < 0 ? 0 : (int)ns;
    int shift = 63 - __builtin_clzll((uint64_t)ns) - 6; /* ns >> shift is 64 to 127 */
    int bucket = shift * FINE + (int)(ns >> shift);
    return bucket < BUCKETS ? bucket : BUCKETS - 1;
}

static inline double bucket_us(int bucket) {
    if (bucket < 2 * FINE) return bucket / 1e3;
    int shift = bucket / FINE - 1;
    return (double)((int64_t)(bucket % FINE + FINE) << shift) / 1e3;
}

static inline void note(Histogram *histogram, int64_t ns) {
    histogram->count++;
    histogram->buckets[bucket_of(ns)]++;
}

static inline double quantile_us(const Histogram *histogram, double q) {
    uint64_t wanted = (uint64_t)(q * (double)histogram->count), seen = 0;
    for (int n = 0; n < BUCKETS; n++)
        if ((seen += histogram->buckets[n]) > wanted) return bucket_us(n);
    return 0;
}
#endif

/* Counts the bytes that a process has allocated, and the most it had at once.
 *
 * Loaded before the C library (LD_PRELOAD), so it sees what PyTorch's allocator, oneDNN
 * and MKL ask for, scratch included, and neither reserves nor fragmentation. Blocks below
 * 4 KiB are left out: they are Python's objects, not tensors of a training step.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>

#define LEAST 4096

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static atomic_llong live, peak;

long long corpus_live(void) { return atomic_load(&live); }
long long corpus_peak(void) { return atomic_load(&peak); }
void corpus_reset(void) { atomic_store(&peak, atomic_load(&live)); }

static void *come(void *block) {
    size_t size = block ? malloc_usable_size(block) : 0;
    if (size >= LEAST) {
        long long now = atomic_fetch_add(&live, (long long)size) + (long long)size;
        long long most = atomic_load(&peak);
        while (now > most && !atomic_compare_exchange_weak(&peak, &most, now)) {
        }
    }
    return block;
}

static void gone(size_t size) {
    if (size >= LEAST) atomic_fetch_sub(&live, (long long)size);
}

void *malloc(size_t size) { return come(__libc_malloc(size)); }
void *calloc(size_t n, size_t size) { return come(__libc_calloc(n, size)); }
void *memalign(size_t unit, size_t size) { return come(__libc_memalign(unit, size)); }
void *aligned_alloc(size_t unit, size_t size) { return memalign(unit, size); }

int posix_memalign(void **block, size_t unit, size_t size) {
    *block = memalign(unit, size);
    return *block || !size ? 0 : ENOMEM;
}

void *realloc(void *block, size_t size) {
    size_t before = block ? malloc_usable_size(block) : 0;
    void *moved = __libc_realloc(block, size);
    if (moved || !size) {
        gone(before);
        come(moved);
    }
    return moved;
}

void free(void *block) {
    if (block) gone(malloc_usable_size(block));
    __libc_free(block);
}

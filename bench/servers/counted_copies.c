/* Counts the bytes that a process and its children copy: `bench/copies.py` preloads it.

   Each process maps its counters from the file $FLAMBEAU_COPIES/PID: bytes of memcpy, memmove and
   of realloc that moved; bytes read; bytes written. Copies below LEAST bytes do not count. The
   loops below are slow and have to be: a call of the C library's own functions would find these. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { COPIED, READ, WRITTEN, COUNTERS, LEAST = 1024 };

static uint64_t nowhere[COUNTERS];
static uint64_t *counters = nowhere;

__attribute__((constructor)) static void map_counters(void) {
  char path[4096];
  const char *folder = getenv("FLAMBEAU_COPIES");
  if (folder == NULL) return;
  snprintf(path, sizeof path, "%s/%d", folder, getpid());
  int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, sizeof nowhere)) return;
  void *mapped = mmap(NULL, sizeof nowhere, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapped != MAP_FAILED) counters = mapped;
  close(file);
}

static ssize_t count(int kind, ssize_t size) {
  if (size > 0) __atomic_fetch_add(&counters[kind], (uint64_t)size, __ATOMIC_RELAXED);
  return size;
}

void *memmove(void *to, const void *from, size_t size) {
  char *out = to;
  const char *in = from;
  if (size >= LEAST) count(COPIED, (ssize_t)size);
  if (out <= in || out >= in + size)
    for (size_t i = 0; i < size; i++) out[i] = in[i];
  else
    while (size--) out[size] = in[size];
  return to;
}

void *memcpy(void *restrict to, const void *restrict from, size_t size) {
  return memmove(to, from, size);
}

void *__memcpy_chk(void *to, const void *from, size_t size, size_t room) {
  return size > room ? (abort(), to) : memmove(to, from, size);
}

void *__memmove_chk(void *to, const void *from, size_t size, size_t room) {
  return size > room ? (abort(), to) : memmove(to, from, size);
}

extern void *__libc_realloc(void *memory, size_t size);

/* The kernel moves the pages of a block that has a mapping of its own: nothing is copied. Another
   allocator than the C library's, such as Redis', calls memcpy. */
void *realloc(void *memory, size_t size) {
  static void *(*next)(void *, size_t);
  if (next == NULL) next = (void *(*)(void *, size_t))dlsym(RTLD_NEXT, "realloc");
  if (next != __libc_realloc) return next(memory, size);
  size_t before = memory == NULL ? 0 : malloc_usable_size(memory);
  int is_mapped = memory != NULL && ((size_t *)memory)[-1] & 2;
  uintptr_t at = (uintptr_t)memory;
  void *moved = next(memory, size);
  size_t copied = before < size ? before : size;
  if ((uintptr_t)moved != at && !is_mapped && copied >= LEAST) count(COPIED, (ssize_t)copied);
  return moved;
}

#define CALL(kind, ...) return count(kind, syscall(__VA_ARGS__))
ssize_t read(int fd, void *to, size_t size) { CALL(READ, SYS_read, fd, to, size); }
ssize_t readv(int fd, const struct iovec *to, int n) { CALL(READ, SYS_readv, fd, to, n); }
ssize_t recv(int fd, void *to, size_t size, int flags) {
  CALL(READ, SYS_recvfrom, fd, to, size, flags, NULL, NULL);
}
ssize_t recvmsg(int fd, struct msghdr *to, int flags) { CALL(READ, SYS_recvmsg, fd, to, flags); }
ssize_t write(int fd, const void *from, size_t size) { CALL(WRITTEN, SYS_write, fd, from, size); }
ssize_t writev(int fd, const struct iovec *from, int n) { CALL(WRITTEN, SYS_writev, fd, from, n); }
ssize_t send(int fd, const void *from, size_t size, int flags) {
  CALL(WRITTEN, SYS_sendto, fd, from, size, flags, NULL, 0);
}
ssize_t sendmsg(int fd, const struct msghdr *from, int flags) {
  CALL(WRITTEN, SYS_sendmsg, fd, from, flags);
}

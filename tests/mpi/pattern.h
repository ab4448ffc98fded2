/*
 * What the programs here put into messages, and how they look at what arrives. A byte's value follows from who sent it, to
 * whom, in which round and at which place, so that data of another message, or shifted data, is found.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;
static uint64_t checked, wrong;

static void *allocate(size_t bytes)
{
	/* Never empty, never the zeros of a fresh page. */
	void *memory = malloc(bytes + 1);

	if (!memory) {
		fprintf(stderr, "no memory for %zu bytes\n", bytes);
		MPI_Abort(MPI_COMM_WORLD, 3);
		exit(3);
	}
	memset(memory, 0xee, bytes + 1);
	return memory;
}

static uint64_t seed_of(int from, int to, int round)
{
	uint64_t x = ((uint64_t)from << 42) ^ ((uint64_t)to << 21) ^ (uint64_t)round ^ 0x9e3779b97f4a7c15ULL;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
	return x ^ (x >> 31);
}

static unsigned char byte_at(uint64_t seed, size_t place)
{
	return (unsigned char)((seed >> (place % 8 * 8)) + place / 8 * 131);
}

static void fill(unsigned char *to, size_t bytes, uint64_t seed)
{
	for (size_t i = 0; i < bytes; i++)
		to[i] = byte_at(seed, i);
}

static void check(const char *what, const unsigned char *data, size_t bytes, uint64_t seed)
{
	for (size_t i = 0; i < bytes; i++) {
		checked++;
		if (data[i] != byte_at(seed, i) && wrong++ < 10)
			fprintf(stderr, "rank %d: %s: byte %zu of %zu is %02x, not %02x\n", rank, what, i, bytes, data[i],
				byte_at(seed, i));
	}
}

/* The last line of rank 0; the exit code. */
static int report(void)
{
	uint64_t sums[2] = {checked, wrong}, totals[2];

	MPI_Allreduce(sums, totals, 2, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%d ranks, %llu bytes checked, %llu wrong\n", ranks, (unsigned long long)totals[0],
		       (unsigned long long)totals[1]);
	return totals[1] != 0;
}

/*
 * Moves data between MPI ranks in many ways and looks at every byte that arrives.
 *
 * Ends with one line of rank 0: "N ranks, M bytes checked, 0 wrong". MPI's own error handler ends the program on errors.
 */
#include "pattern.h"

static void check_number(const char *what, int64_t is, int64_t wanted)
{
	checked += sizeof(is);
	if (is != wanted && wrong++ < 10)
		fprintf(stderr, "rank %d: %s is %lld, not %lld\n", rank, what, (long long)is, (long long)wanted);
}

/* Everybody to everybody, in blocks of one size. */
static void all_to_all(void)
{
	static const int sizes[] = {0, 1, 2, 3, 7, 8, 63, 64, 255, 256, 1023, 1024, 2047, 4095, 4096, 4097, 8192, 16383, 32768, 65537, 262144, 1000003};

	for (size_t s = 0; s < sizeof(sizes) / sizeof(*sizes); s++) {
		size_t size = sizes[s];
		unsigned char *out = allocate(size * ranks), *in = allocate(size * ranks);

		for (int to = 0; to < ranks; to++)
			fill(out + to * size, size, seed_of(rank, to, s));
		MPI_Alltoall(out, size, MPI_BYTE, in, size, MPI_BYTE, MPI_COMM_WORLD);
		for (int from = 0; from < ranks; from++)
			check("all-to-all", in + from * size, size, seed_of(from, rank, s));
		free(out);
		free(in);
	}
}

static int uneven(int from, int to, int round)
{
	static const int limits[] = {16, 300, 5000, 70000, 400000};

	return seed_of(from, to, 1000 + round) % limits[round % 5];
}

/* The same with a size for each pair. */
static void all_to_all_uneven(void)
{
	int *counts = allocate(4 * ranks * sizeof(int));
	int *places = counts + ranks, *in_counts = counts + 2 * ranks, *in_places = counts + 3 * ranks;

	for (int round = 0; round < 20; round++) {
		int total = 0, in_total = 0;

		for (int other = 0; other < ranks; other++) {
			counts[other] = uneven(rank, other, round);
			places[other] = total;
			total += counts[other];
			in_counts[other] = uneven(other, rank, round);
			in_places[other] = in_total;
			in_total += in_counts[other];
		}
		unsigned char *out = allocate(total), *in = allocate(in_total);

		for (int to = 0; to < ranks; to++)
			fill(out + places[to], counts[to], seed_of(rank, to, round));
		MPI_Alltoallv(out, counts, places, MPI_BYTE, in, in_counts, in_places, MPI_BYTE, MPI_COMM_WORLD);
		for (int from = 0; from < ranks; from++)
			check("uneven all-to-all", in + in_places[from], in_counts[from], seed_of(from, rank, round));
		free(out);
		free(in);
	}
	free(counts);
}

enum { STORM = 200 };

static size_t storm_size(int from, int to, int tag)
{
	uint64_t x = seed_of(from, to, 5000 + tag);

	/* Mostly short, some of every protocol's sizes. */
	return x % 100 < 80 ? x / 128 % 600 : x % 100 < 95 ? x / 128 % 20000 : x / 128 % 300000;
}

/* All messages of all pairs at once. Half of the receives are posted late and in reverse, so that messages wait unexpected. */
static void storm(void)
{
	size_t n = (size_t)ranks * STORM;
	unsigned char **out = allocate(n * sizeof(*out)), **in = allocate(n * sizeof(*in));
	MPI_Request *requests = allocate(2 * n * sizeof(*requests));
	MPI_Status *statuses = allocate(2 * n * sizeof(*statuses));
	size_t r = 0;

	for (int from = 0; from < ranks; from++)
		for (int tag = 0; tag < STORM; tag++)
			in[from * STORM + tag] = allocate(storm_size(from, rank, tag));
	for (int from = 0; from < ranks; from++)
		for (int tag = 0; tag < STORM; tag += 2)
			MPI_Irecv(in[from * STORM + tag], storm_size(from, rank, tag), MPI_BYTE, from, tag, MPI_COMM_WORLD,
				  &requests[r++]);
	for (int tag = 0; tag < STORM; tag++)
		for (int k = 0; k < ranks; k++) {
			int to = (rank + k) % ranks;
			size_t size = storm_size(rank, to, tag);
			unsigned char *data = allocate(size);

			out[to * STORM + tag] = data;
			fill(data, size, seed_of(rank, to, tag));
			MPI_Isend(data, size, MPI_BYTE, to, tag, MPI_COMM_WORLD, &requests[r++]);
		}
	for (int from = ranks - 1; from >= 0; from--)
		for (int tag = STORM - 1; tag > 0; tag -= 2)
			MPI_Irecv(in[from * STORM + tag], storm_size(from, rank, tag), MPI_BYTE, from, tag, MPI_COMM_WORLD,
				  &requests[r++]);
	MPI_Waitall(r, requests, statuses);
	for (int from = 0; from < ranks; from++)
		for (int tag = 0; tag < STORM; tag++)
			check("storm", in[from * STORM + tag], storm_size(from, rank, tag), seed_of(from, rank, tag));
	for (size_t i = 0; i < n; i++) {
		free(out[i]);
		free(in[i]);
	}
	free(out);
	free(in);
	free(requests);
	free(statuses);
}

enum { WINDOW = 300000 };

/* Put and get with fences: each rank owns a part of every window. */
static void put_and_get(void)
{
	static const size_t sizes[] = {1, 8, 100, 4096, 5000, 65536, WINDOW};
	unsigned char *window, *local = allocate(WINDOW);
	MPI_Win win;

	MPI_Win_allocate((MPI_Aint)WINDOW * ranks, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window, &win);
	for (size_t s = 0; s < sizeof(sizes) / sizeof(*sizes); s++) {
		size_t size = sizes[s];

		MPI_Win_fence(0, win);
		memset(window, 0xdd, (size_t)WINDOW * ranks);
		unsigned char *out = allocate(size * ranks);

		for (int to = 0; to < ranks; to++)
			fill(out + to * size, size, seed_of(rank, to, s));
		MPI_Win_fence(0, win);
		for (int k = 0; k < ranks; k++) {
			int to = (rank + k) % ranks;

			MPI_Put(out + to * size, size, MPI_BYTE, to, (MPI_Aint)WINDOW * rank, size, MPI_BYTE, win);
		}
		MPI_Win_fence(0, win);
		for (int from = 0; from < ranks; from++)
			check("put", window + (size_t)WINDOW * from, size, seed_of(from, rank, s));
		MPI_Win_fence(0, win);
		/* What the next one has written to the one after it. */
		int writer = (rank + 1) % ranks, owner = (rank + 2) % ranks;

		memset(local, 0xcc, WINDOW);
		MPI_Get(local, size, MPI_BYTE, owner, (MPI_Aint)WINDOW * writer, size, MPI_BYTE, win);
		MPI_Win_fence(0, win);
		check("get", local, size, seed_of(writer, owner, s));
		free(out);
	}
	MPI_Win_free(&win);
	free(local);
}

enum { NUMBERS = 3000, TIMES = 200 };

/* Accumulate, fetch-and-add, and numbers under locks: all ranks on the same words. */
static void atomics(void)
{
	int64_t *window, *ones = allocate(NUMBERS * sizeof(*ones)), *seen = allocate(TIMES * sizeof(*seen));
	MPI_Win win;

	MPI_Win_allocate(NUMBERS * sizeof(*window), sizeof(*window), MPI_INFO_NULL, MPI_COMM_WORLD, &window, &win);
	MPI_Win_fence(0, win);
	for (int i = 0; i < NUMBERS; i++) {
		window[i] = i;
		ones[i] = rank + 1;
	}
	MPI_Win_fence(0, win);
	for (int k = 0; k < ranks; k++)
		MPI_Accumulate(ones, NUMBERS, MPI_INT64_T, (rank + k) % ranks, 0, NUMBERS, MPI_INT64_T, MPI_SUM, win);
	MPI_Win_fence(0, win);
	for (int i = 0; i < NUMBERS; i++)
		check_number("accumulated", window[i], i + ranks * (ranks + 1) / 2);
	MPI_Win_fence(0, win);
	window[0] = window[1] = 0;
	MPI_Win_fence(0, win);

	MPI_Win_lock_all(0, win);
	int64_t one = 1, sum = 0, last = -1;

	/* A counter of rank 0: tickets rise for each, and all of them together are each number once. */
	for (int i = 0; i < TIMES; i++) {
		MPI_Fetch_and_op(&one, &seen[i], MPI_INT64_T, 0, 0, MPI_SUM, win);
		MPI_Win_flush(0, win);
		if (seen[i] <= last)
			check_number("a ticket that does not rise", seen[i], last + 1);
		last = seen[i];
		sum += seen[i];
	}
	MPI_Win_unlock_all(win);

	/* Under an exclusive lock, without atomics: read, add, write. */
	for (int i = 0; i < TIMES / 4; i++) {
		int64_t value = -1;

		MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 1 % ranks, 0, win);
		MPI_Get(&value, 1, MPI_INT64_T, 1 % ranks, 1, 1, MPI_INT64_T, win);
		MPI_Win_flush(1 % ranks, win);
		value++;
		MPI_Put(&value, 1, MPI_INT64_T, 1 % ranks, 1, 1, MPI_INT64_T, win);
		MPI_Win_unlock(1 % ranks, win);
	}
	MPI_Barrier(MPI_COMM_WORLD);

	int64_t all = (int64_t)ranks * TIMES, total = 0;
	MPI_Allreduce(&sum, &total, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
	check_number("the sum of tickets", total, all * (all - 1) / 2);
	MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, win);
	if (rank == 0)
		check_number("the counter", window[0], all);
	if (rank == 1 % ranks)
		check_number("the locked number", window[1], (int64_t)ranks * (TIMES / 4));
	MPI_Win_unlock(rank, win);
	MPI_Win_free(&win);
	free(ones);
	free(seen);
}

/* A number of the last rank, changed by compare-and-swap until it works. A part of its own: not every MPI can do it. */
static void compare_and_swap(void)
{
	int64_t *window;
	MPI_Win win;

	MPI_Win_allocate(2 * sizeof(*window), sizeof(*window), MPI_INFO_NULL, MPI_COMM_WORLD, &window, &win);
	window[0] = window[1] = 0;
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock_all(0, win);
	for (int i = 0; i < TIMES / 4; i++)
		for (int64_t guess = 0;;) {
			int64_t next = guess + 1, found = -1;

			MPI_Compare_and_swap(&next, &guess, &found, MPI_INT64_T, ranks - 1, 1, win);
			MPI_Win_flush(ranks - 1, win);
			if (found == guess)
				break;
			guess = found;
		}
	MPI_Win_unlock_all(win);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, win);
	if (rank == ranks - 1)
		check_number("the swapped number", window[1], (int64_t)ranks * (TIMES / 4));
	check_number("its neighbour", window[0], 0);
	MPI_Win_unlock(rank, win);
	MPI_Win_free(&win);
}

int main(int argc, char **argv)
{
	/* Which parts, by letter; all without. */
	const char *parts = argc > 1 ? argv[1] : "avspnc";

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	for (; *parts; parts++) {
		switch (*parts) {
		case 'a':
			all_to_all();
			break;
		case 'v':
			all_to_all_uneven();
			break;
		case 's':
			storm();
			break;
		case 'p':
			put_and_get();
			break;
		case 'n':
			atomics();
			break;
		case 'c':
			compare_and_swap();
			break;
		default:
			fprintf(stderr, "no part %c\n", *parts);
			MPI_Abort(MPI_COMM_WORLD, 2);
		}
		MPI_Barrier(MPI_COMM_WORLD);
	}
	int failed = report();

	MPI_Finalize();
	return failed;
}

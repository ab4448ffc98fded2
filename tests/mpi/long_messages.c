/*
 * The bandwidth of long messages from rank 0 to rank 1, in the layout of osu_bw: for each size some windows of sends that
 * are under way together, each window answered by a short message. Only the transfers are timed. Every message has other
 * data, and every byte of it is looked at, sizes around the powers of 2 included.
 *
 * Ends with one line of rank 0: "2 ranks, M bytes checked, 0 wrong". MPI's own error handler ends the program on errors.
 */
#include "pattern.h"

enum { WINDOW = 8, ROUNDS = 2, LONGEST = 4 << 20 };

static unsigned char *messages[WINDOW];

/* Seconds for one window. */
static double window(int size, int round)
{
	MPI_Request requests[WINDOW];
	MPI_Status statuses[WINDOW];
	char answer = 0;

	for (int i = 0; i < WINDOW && rank == 0; i++)
		fill(messages[i], size, seed_of(size, i, round));
	for (int i = 0; i < WINDOW && rank == 1; i++)
		memset(messages[i], 0xee, size);
	MPI_Barrier(MPI_COMM_WORLD);
	double start = MPI_Wtime();

	for (int i = 0; i < WINDOW; i++)
		if (rank == 0)
			MPI_Isend(messages[i], size, MPI_BYTE, 1, i, MPI_COMM_WORLD, &requests[i]);
		else
			MPI_Irecv(messages[i], size, MPI_BYTE, 0, i, MPI_COMM_WORLD, &requests[i]);
	MPI_Waitall(WINDOW, requests, statuses);
	if (rank == 0)
		MPI_Recv(&answer, 1, MPI_BYTE, 1, WINDOW, MPI_COMM_WORLD, &statuses[0]);
	else
		MPI_Send(&answer, 1, MPI_BYTE, 0, WINDOW, MPI_COMM_WORLD);
	double end = MPI_Wtime();

	for (int i = 0; i < WINDOW && rank == 1; i++)
		check("long message", messages[i], size, seed_of(size, i, round));
	return end - start;
}

static void measure(int size)
{
	double seconds = 0;

	for (int round = 0; round < ROUNDS; round++)
		seconds += window(size, round);
	if (rank == 0)
		printf("%-10d%19.2f\n", size, (double)size * WINDOW * ROUNDS / seconds / 1e6);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (ranks != 2) {
		fprintf(stderr, "wants 2 ranks, not %d\n", ranks);
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	/* Not at the start of a page. */
	for (int i = 0; i < WINDOW; i++)
		messages[i] = (unsigned char *)allocate(LONGEST + 16) + i;
	if (rank == 0)
		printf("# Size      Bandwidth (MB/s)\n");
	for (int size = 1024; size < LONGEST; size *= 4) {
		measure(size - 1);
		measure(size);
		measure(size + 1);
	}
	measure(LONGEST);
	int failed = report();

	for (int i = 0; i < WINDOW; i++)
		free(messages[i] - i);
	MPI_Finalize();
	return failed;
}

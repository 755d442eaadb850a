/* The loops over libpmemobj, in C with the library's own macros: what its users write. Each function does `count` operations and
 * returns 0, or -1 with the reason in pmemobj_errormsg(). The rows are defined in cenote-bench. */

#include <libpmemobj.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LINES 64

POBJ_LAYOUT_BEGIN(bench);
POBJ_LAYOUT_ROOT(bench, struct bench_root);
POBJ_LAYOUT_TOID(bench, struct bench_list);
POBJ_LAYOUT_TOID(bench, struct bench_node);
POBJ_LAYOUT_TOID(bench, struct bench_leaf);
POBJ_LAYOUT_END(bench);

struct bench_line {
	uint64_t value;
	uint64_t rest[7];
};

struct bench_node {
	uint64_t value;
	TOID(struct bench_node) next;
};

struct bench_leaf {
	uint64_t value;
	TOID(struct bench_leaf) left;
	TOID(struct bench_leaf) right;
};

struct bench_list {
	TOID(struct bench_node) first;
	TOID(struct bench_node) last;
	uint64_t len;
};

struct bench_root {
	struct bench_line lines[LINES];
	struct bench_list list;
};

struct peer {
	PMEMobjpool *pool;
	uint64_t uuid_lo;
	struct bench_line *lines;
	TOID(struct bench_root) root;
};

void peer_force_pmem(void) { setenv("PMEM_IS_PMEM_FORCE", "1", 1); }

const char *peer_error(void) { return pmemobj_errormsg(); }

struct peer *peer_open(const char *path, uint64_t size)
{
	struct peer *peer = calloc(1, sizeof *peer);
	if (!peer)
		return NULL;
	peer->pool = pmemobj_create(path, POBJ_LAYOUT_NAME(bench), size, 0600);
	if (!peer->pool) {
		free(peer);
		return NULL;
	}
	/* The root object begins 16 bytes after a line: go to the next one. */
	PMEMoid root = pmemobj_root(peer->pool, sizeof(struct bench_root) + 64);
	peer->uuid_lo = root.pool_uuid_lo;
	uintptr_t at = ((uintptr_t)pmemobj_direct(root) + 63) & ~(uintptr_t)63;
	root.off += at - (uintptr_t)pmemobj_direct(root);
	TOID_ASSIGN(peer->root, root);
	peer->lines = (struct bench_line *)at;
	return peer;
}

void peer_close(struct peer *peer)
{
	pmemobj_close(peer->pool);
	free(peer);
}

#define BEGIN volatile int failed = 0; TX_BEGIN(peer->pool) {
#define END } TX_ONABORT { failed = -1; } TX_END if (failed) return failed;

int peer_tx_nop(struct peer *peer, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		BEGIN END
	}
	return 0;
}

int peer_tx_add_8(struct peer *peer, uint64_t count)
{
	volatile uint64_t *word = &peer->lines[0].value;
	for (uint64_t i = 0; i < count; i++) {
		BEGIN
			pmemobj_tx_add_range_direct((const void *)word, 8);
			*word = i;
		END
	}
	return 0;
}

/* `count` transactions of 64 operations. */
int peer_tx_add_8_of_64(struct peer *peer, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		BEGIN
			for (int k = 0; k < LINES; k++) {
				volatile uint64_t *word = &peer->lines[k].value;
				pmemobj_tx_add_range_direct((const void *)word, 8);
				*word = i;
			}
		END
	}
	return 0;
}

int peer_tx_add_4096(struct peer *peer, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		BEGIN
			pmemobj_tx_add_range_direct(peer->lines, 4096);
			memset(peer->lines, (int)i, 4096);
		END
	}
	return 0;
}

int peer_tx_add_4096_unwritten(struct peer *peer, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		BEGIN
			pmemobj_tx_add_range_direct(peer->lines, 4096);
		END
	}
	return 0;
}

int peer_malloc(struct peer *peer, uint64_t count, uint64_t size, PMEMoid *blocks)
{
	for (uint64_t i = 0; i < count; i++) {
		BEGIN
			blocks[i] = pmemobj_tx_alloc(size, 1);
		END
	}
	return 0;
}

int peer_free(struct peer *peer, uint64_t count, PMEMoid *blocks)
{
	for (uint64_t i = 0; i < count; i++) {
		BEGIN
			pmemobj_tx_free(blocks[i]);
		END
	}
	return 0;
}

int peer_malloc_free(struct peer *peer, uint64_t count, uint64_t size)
{
	for (uint64_t i = 0; i < count; i++) {
		PMEMoid block;
		if (peer_malloc(peer, 1, size, &block) || peer_free(peer, 1, &block))
			return -1;
	}
	return 0;
}

int peer_insert(struct peer *peer, uint64_t count)
{
	struct bench_list *list = &D_RW(peer->root)->list;
	for (uint64_t i = 0; i < count; i++) {
		BEGIN
			TOID(struct bench_node) node = TX_NEW(struct bench_node);
			D_RW(node)->value = i;
			D_RW(node)->next = TOID_NULL(struct bench_node);
			pmemobj_tx_add_range_direct(list, sizeof *list);
			if (TOID_IS_NULL(list->last)) {
				list->first = node;
			} else {
				TX_ADD_FIELD(list->last, next);
				D_RW(list->last)->next = node;
			}
			list->last = node;
			list->len++;
		END
	}
	return 0;
}

int peer_empty(struct peer *peer)
{
	struct bench_list *list = &D_RW(peer->root)->list;
	while (!TOID_IS_NULL(list->first)) {
		BEGIN
			pmemobj_tx_add_range_direct(list, sizeof *list);
			for (int k = 0; k < 256 && !TOID_IS_NULL(list->first); k++) {
				TOID(struct bench_node) node = list->first;
				list->first = D_RO(node)->next;
				TX_FREE(node);
			}
			if (TOID_IS_NULL(list->first)) {
				list->last = TOID_NULL(struct bench_node);
				list->len = 0;
			}
		END
	}
	return 0;
}

/* Blocks for programs that keep addresses, as those of malloc: the id is made from the address without the library's search for the pool. */

void *peer_block_alloc(struct peer *peer, uint64_t size)
{
	PMEMoid block;
	if (pmemobj_alloc(peer->pool, &block, size, 1, NULL, NULL))
		return NULL;
	return (char *)peer->pool + block.off;
}

void peer_block_free(struct peer *peer, void *address)
{
	PMEMoid block = { peer->uuid_lo, (uint64_t)((char *)address - (char *)peer->pool) };
	pmemobj_free(&block);
}

/* Figure 1. Blocks are kept in `blocks` so that they can be freed. */

static int put(struct peer *peer, PMEMoid *block, uint64_t size, uint64_t type)
{
	return pmemobj_alloc(peer->pool, block, size, type, NULL, NULL);
}

int peer_build_list(struct peer *peer, uint64_t len, PMEMoid *blocks)
{
	TOID(struct bench_node) last = TOID_NULL(struct bench_node);
	for (uint64_t i = 0; i < len; i++) {
		if (put(peer, &blocks[i], sizeof(struct bench_node), TOID_TYPE_NUM(struct bench_node)))
			return -1;
		TOID(struct bench_node) node;
		TOID_ASSIGN(node, blocks[i]);
		D_RW(node)->value = i;
		D_RW(node)->next = TOID_NULL(struct bench_node);
		if (i)
			D_RW(last)->next = node;
		last = node;
	}
	return 0;
}

static int build_tree(struct peer *peer, uint32_t height, PMEMoid **blocks, TOID(struct bench_leaf) *made)
{
	if (put(peer, *blocks, sizeof(struct bench_leaf), TOID_TYPE_NUM(struct bench_leaf)))
		return -1;
	TOID(struct bench_leaf) leaf;
	TOID_ASSIGN(leaf, **blocks);
	++*blocks;
	TOID(struct bench_leaf) left = TOID_NULL(struct bench_leaf), right = TOID_NULL(struct bench_leaf);
	if (height > 1 && (build_tree(peer, height - 1, blocks, &left) || build_tree(peer, height - 1, blocks, &right)))
		return -1;
	D_RW(leaf)->value = height;
	D_RW(leaf)->left = left;
	D_RW(leaf)->right = right;
	*made = leaf;
	return 0;
}

int peer_build_tree(struct peer *peer, uint32_t height, PMEMoid *blocks)
{
	TOID(struct bench_leaf) root;
	return build_tree(peer, height, &blocks, &root);
}

void peer_free_all(uint64_t count, PMEMoid *blocks)
{
	for (uint64_t i = count; i > 0; i--)
		pmemobj_free(&blocks[i - 1]);
}

uint64_t peer_sum_list(const PMEMoid *first)
{
	uint64_t sum = 0;
	TOID(struct bench_node) at;
	TOID_ASSIGN(at, *first);
	while (!TOID_IS_NULL(at)) {
		sum += D_RO(at)->value;
		at = D_RO(at)->next;
	}
	return sum;
}

static uint64_t sum_tree(TOID(struct bench_leaf) at)
{
	if (TOID_IS_NULL(at))
		return 0;
	return D_RO(at)->value + sum_tree(D_RO(at)->left) + sum_tree(D_RO(at)->right);
}

uint64_t peer_sum_tree(const PMEMoid *first)
{
	TOID(struct bench_leaf) at;
	TOID_ASSIGN(at, *first);
	return sum_tree(at);
}

/* Sensor aggregation: a list of state variables in the root object of a pool, with the macros of the library. */

POBJ_LAYOUT_BEGIN(sensors);
POBJ_LAYOUT_ROOT(sensors, struct sensor_list);
POBJ_LAYOUT_TOID(sensors, struct sensor_variable);
POBJ_LAYOUT_END(sensors);

struct sensor_variable {
	uint64_t node;
	uint64_t number;
	TOID(struct sensor_variable) next;
};

struct sensor_list {
	TOID(struct sensor_variable) first;
	TOID(struct sensor_variable) last;
};

/* Appends to the list, inside a transaction; the list was added to it. */
static void sensor_append(TOID(struct sensor_list) list, uint64_t node, uint64_t number)
{
	TOID(struct sensor_variable) made = TX_NEW(struct sensor_variable);
	TOID(struct sensor_variable) last = D_RO(list)->last;
	D_RW(made)->node = node;
	D_RW(made)->number = number;
	D_RW(made)->next = TOID_NULL(struct sensor_variable);
	if (TOID_IS_NULL(D_RO(list)->first))
		D_RW(list)->first = made;
	else
		TX_SET(last, next, made);
	D_RW(list)->last = made;
}

/* A sensor node: a pool of its own with its variables, made in one transaction. */
int peer_sense(const char *path, uint64_t size, uint64_t node, uint64_t variables)
{
	PMEMobjpool *pool = pmemobj_create(path, POBJ_LAYOUT_NAME(sensors), size, 0600);
	volatile int failed = 0;

	if (!pool)
		return -1;
	TOID(struct sensor_list) list = POBJ_ROOT(pool, struct sensor_list);
	TX_BEGIN(pool) {
		TX_ADD(list);
		for (uint64_t number = 0; number < variables; number++)
			sensor_append(list, node, number);
	} TX_ONABORT {
		failed = -1;
	} TX_END
	pmemobj_close(pool);
	return failed;
}

PMEMobjpool *peer_gather_begin(const char *path, uint64_t size)
{
	return pmemobj_create(path, POBJ_LAYOUT_NAME(sensors), size, 0600);
}

/* Opens a node's pool and allocates its variables again, behind those that are there: one transaction for each node. */
int peer_gather(PMEMobjpool *all, const char *path)
{
	PMEMobjpool *from = pmemobj_open(path, POBJ_LAYOUT_NAME(sensors));
	volatile int failed = 0;

	if (!from)
		return -1;
	TOID(struct sensor_list) list = POBJ_ROOT(all, struct sensor_list);
	TOID(struct sensor_list) theirs = POBJ_ROOT(from, struct sensor_list);
	TX_BEGIN(all) {
		TOID(struct sensor_variable) at;
		TX_ADD(list);
		for (at = D_RO(theirs)->first; !TOID_IS_NULL(at); at = D_RO(at)->next)
			sensor_append(list, D_RO(at)->node, D_RO(at)->number);
	} TX_ONABORT {
		failed = -1;
	} TX_END
	pmemobj_close(from);
	return failed;
}

/* Node and number of each variable, at most `max` of them; how many there are. Closes the pool. */
uint64_t peer_gather_end(PMEMobjpool *all, uint64_t max, uint64_t (*found)[2])
{
	uint64_t count = 0;
	TOID(struct sensor_list) list = POBJ_ROOT(all, struct sensor_list);
	TOID(struct sensor_variable) at;

	for (at = D_RO(list)->first; !TOID_IS_NULL(at); at = D_RO(at)->next) {
		if (count < max) {
			found[count][0] = D_RO(at)->node;
			found[count][1] = D_RO(at)->number;
		}
		count++;
	}
	pmemobj_close(all);
	return count;
}

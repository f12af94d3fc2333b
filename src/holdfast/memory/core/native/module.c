/* The compiled core of a pool, with the calls and promises of pool_core.py.
 *
 * The parts are one translation unit, in the order in which they need each other: everything is
 * static, and the compiler can put the short functions into the long ones.
 *
 * Locking: one mutex for each core and each log, taken in that order. No Python code runs while one
 * is held, so a free from __del__, from a thread without the GIL or during a collection cannot
 * deadlock. fork() takes them all first.
 */
#include "base.h"
#include "tags.h"
#include "log.h"
#include "chunks.h"
#include "arenas.h"
#include "core.h"
#include "entries.h"
#include "block_type.h"
#include "core_calls.h"
#include "core_questions.h"
#include "core_type.h"
#include "log_type.h"

static void before_fork(void) {
    pthread_mutex_lock(&all_lock);
    for (Core *c = all_cores; c; c = c->next_core) pthread_mutex_lock(&c->lock);
    for (Log *l = all_logs; l; l = l->next_log) pthread_mutex_lock(&l->lock);
}

static void after_fork(void) {
    for (Log *l = all_logs; l; l = l->next_log) pthread_mutex_unlock(&l->lock);
    for (Core *c = all_cores; c; c = c->next_core) pthread_mutex_unlock(&c->lock);
    pthread_mutex_unlock(&all_lock);
}

static PyMethodDef module_methods[] = {
    {"set_tag", py_set_tag, METH_O, NULL},
    {"declare_tag", py_declare_tag, METH_VARARGS, NULL},
    {"tag_counters", py_tag_counters, METH_O, NULL},
    {"set_tag_peaks", py_set_tag_peaks, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL}};
static struct PyModuleDef module_definition = {PyModuleDef_HEAD_INIT, "_core", NULL, -1, module_methods,
                                               NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__core(void) {
    static int forks = 0;
    if (PyType_Ready(&BlockType) || PyType_Ready(&CoreType) || PyType_Ready(&LogType)) return NULL;
    PyObject *module = PyModule_Create(&module_definition);
    if (!module) return NULL;
    page_size = (u64)sysconf(_SC_PAGESIZE);
    if (!forks++) pthread_atfork(before_fork, after_fork, after_fork);
    if (!PyModule_AddObjectRef(module, "Block", (PyObject *)&BlockType) &&
        !PyModule_AddObjectRef(module, "make_block", (PyObject *)&BlockType) &&
        !PyModule_AddObjectRef(module, "Core", (PyObject *)&CoreType) &&
        !PyModule_AddObjectRef(module, "Log", (PyObject *)&LogType))
        return module;
    Py_DECREF(module);
    return NULL;
}

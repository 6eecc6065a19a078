/* Reads what a launch needs from a cubin: the kernels, their parameter tables and resources, and
 * the device variables. A cubin is an ELF file; the notes on a kernel are records of
 * (format, attribute, size or value) in the section .nv.info.<kernel>. */
#include "state.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

enum { KERNEL_FLAG = 0x10, FORMAT_SIZED = 4 };
enum { MAX_THREADS = 0x05, FRAME_SIZE = 0x11, EXACT_THREADS = 0x10, PARAMETER = 0x17, REGISTERS = 0x2f };
/* The form of a kernel with more than 4,352 bytes of parameters. */
enum { WIDE_PARAMETER = 0x45 };

typedef struct {
    const char *image;
    const Elf64_Ehdr *header;
    const Elf64_Shdr *sections;
    const char *names, *strings;
    const Elf64_Sym *symbols;
    size_t symbol_count;
} Elf;

static const Elf64_Shdr *section(const Elf *elf, const char *prefix, const char *suffix)
{
    size_t length = strlen(prefix);
    for (int index = 0; index < elf->header->e_shnum; index++) {
        const char *name = elf->names + elf->sections[index].sh_name;
        if (!strncmp(name, prefix, length) && !strcmp(name + length, suffix))
            return &elf->sections[index];
    }
    return NULL;
}

static CUresult open_elf(Elf *elf, const char *image)
{
    elf->image = image;
    elf->header = (const Elf64_Ehdr *)image;
    REQUIRE(!memcmp(image, ELFMAG, SELFMAG) && image[EI_CLASS] == ELFCLASS64, INVALID_IMAGE);
    elf->sections = (const Elf64_Shdr *)(image + elf->header->e_shoff);
    elf->names = image + elf->sections[elf->header->e_shstrndx].sh_offset;
    const Elf64_Shdr *symbols = section(elf, ".symtab", "");
    REQUIRE(symbols, INVALID_IMAGE);
    elf->symbols = (const Elf64_Sym *)(image + symbols->sh_offset);
    elf->symbol_count = symbols->sh_size / sizeof(Elf64_Sym);
    elf->strings = image + elf->sections[symbols->sh_link].sh_offset;
    return SUCCESS;
}

/* ---- kernels ---- */

typedef void (*Note)(void *state, int attribute, const uint32_t *words, size_t size);

static void each_note(const Elf *elf, const Elf64_Shdr *notes, Note note, void *state)
{
    const unsigned char *at = (const unsigned char *)elf->image + (notes ? notes->sh_offset : 0);
    const unsigned char *end = at + (notes ? notes->sh_size : 0);
    while (at + 4 <= end) {
        uint16_t size;
        memcpy(&size, at + 2, sizeof size);
        if (at[0] != FORMAT_SIZED)
            size = 0; /* the value stands in the size's place */
        else
            note(state, at[1], (const uint32_t *)(at + 4), size);
        at += 4 + size;
    }
}

static void add_parameter(Kernel *kernel, const uint32_t *words, unsigned size)
{
    unsigned ordinal = words[1] & 0xffff, offset = words[1] >> 16;
    if (ordinal >= kernel->parameter_count) {
        kernel->parameters = realloc(kernel->parameters, (ordinal + 1) * sizeof(Parameter));
        memset(kernel->parameters + kernel->parameter_count, 0,
               (ordinal + 1 - kernel->parameter_count) * sizeof(Parameter));
        kernel->parameter_count = ordinal + 1;
    }
    kernel->parameters[ordinal].offset = (uint16_t)offset;
    kernel->parameters[ordinal].size = (uint16_t)size;
    if (offset + size > kernel->parameter_bytes)
        kernel->parameter_bytes = offset + size;
}

static void kernel_note(void *state, int attribute, const uint32_t *words, size_t size)
{
    Kernel *kernel = state;
    if (attribute == PARAMETER && size >= 12)
        add_parameter(kernel, words, words[2] >> 18);
    else if (attribute == WIDE_PARAMETER && size >= 12)
        add_parameter(kernel, words, words[2] & 0xffff);
    else if ((attribute == MAX_THREADS || attribute == EXACT_THREADS) && size >= 12)
        kernel->max_threads = (int)(words[0] * words[1] * words[2]);
}

typedef struct {
    Kernel *kernel;
    uint32_t symbol;
} Resources;

static void file_note(void *state, int attribute, const uint32_t *words, size_t size)
{
    Resources *resources = state;
    if (size < 8 || words[0] != resources->symbol)
        return;
    if (attribute == REGISTERS)
        resources->kernel->registers = (int)words[1];
    else if (attribute == FRAME_SIZE)
        resources->kernel->local = (int)words[1];
}

/* From compute capability 9.0 on, the section counts 1,024 bytes that the system keeps. */
static int shared_bytes(const Elf *elf, const char *name)
{
    const Elf64_Shdr *own = section(elf, ".nv.shared.", name);
    int size = own ? (int)own->sh_size : 0;
    if (own && section(elf, ".nv.shared.reserved.0", ""))
        size = size > 1024 ? size - 1024 : 0;
    return size;
}

static void add_kernel(Library *library, const Elf *elf, uint32_t index)
{
    const char *name = elf->strings + elf->symbols[index].st_name;
    const Elf64_Shdr *constant = section(elf, ".nv.constant3", "");
    Kernel *kernel = handle_new(KERNEL, sizeof *kernel);
    Resources resources = {kernel, index};
    kernel->library = library;
    kernel->name = strdup(name);
    kernel->max_threads = device_attribute(1);
    kernel->shared = shared_bytes(elf, name);
    kernel->constant = constant ? (int)constant->sh_size : 0;
    for (int device = 0; device < MAX_DEVICES; device++) {
        kernel->max_dynamic[device] = device_attribute(8) - kernel->shared;
        kernel->carveout[device] = -1;
    }
    each_note(elf, section(elf, ".nv.info.", name), kernel_note, kernel);
    each_note(elf, section(elf, ".nv.info", ""), file_note, &resources);
    library->kernels = realloc(library->kernels, (library->kernel_count + 1) * sizeof(Kernel *));
    library->kernels[library->kernel_count++] = kernel;
}

/* ---- variables ---- */

static void add_variable(Library *library, const Elf *elf, const Elf64_Sym *symbol)
{
    const Elf64_Shdr *home = &elf->sections[symbol->st_shndx];
    const char *name = elf->names + home->sh_name;
    if (strncmp(name, ".nv.global", 10) && strcmp(name, ".nv.constant3"))
        return;
    Variable *variable = calloc(1, sizeof *variable);
    variable->name = strdup(elf->strings + symbol->st_name);
    variable->size = symbol->st_size;
    if (home->sh_type != SHT_NOBITS) {
        variable->initial = malloc(symbol->st_size);
        memcpy(variable->initial, elf->image + home->sh_offset + symbol->st_value, symbol->st_size);
    }
    variable->next = library->variables;
    library->variables = variable;
}

CUresult cubin_read(Library *library, const void *image)
{
    Elf elf;
    CHECK(open_elf(&elf, image));
    for (uint32_t index = 1; index < elf.symbol_count; index++) {
        const Elf64_Sym *symbol = &elf.symbols[index];
        int type = ELF64_ST_TYPE(symbol->st_info);
        if (type == STT_FUNC && symbol->st_other & KERNEL_FLAG)
            add_kernel(library, &elf, index);
        else if (type == STT_OBJECT && symbol->st_size && symbol->st_shndx < elf.header->e_shnum)
            add_variable(library, &elf, symbol);
    }
    return SUCCESS;
}

/* Dense matrices of doubles, stored row by row. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct matrix {
    size_t rows;
    size_t columns;
    double *values;
} matrix;

bool matrix_create(matrix *m, size_t rows, size_t columns) {
    m->rows = rows;
    m->columns = columns;
    m->values = calloc(rows * columns, sizeof *m->values);
    return m->values != NULL;
}

void matrix_destroy(matrix *m) {
    free(m->values);
    m->values = NULL;
    m->rows = 0;
    m->columns = 0;
}

double matrix_get(const matrix *m, size_t row, size_t column) {
    return m->values[row * m->columns + column];
}

void matrix_set(matrix *m, size_t row, size_t column, double value) {
    m->values[row * m->columns + column] = value;
}

void matrix_fill(matrix *m, double value) {
    for (size_t i = 0; i < m->rows * m->columns; i++) {
        m->values[i] = value;
    }
}

void matrix_identity(matrix *m) {
    matrix_fill(m, 0.0);
    for (size_t i = 0; i < m->rows && i < m->columns; i++) {
        matrix_set(m, i, i, 1.0);
    }
}

bool matrix_copy(matrix *to, const matrix *from) {
    if (!matrix_create(to, from->rows, from->columns)) {
        return false;
    }
    memcpy(to->values, from->values, from->rows * from->columns * sizeof *from->values);
    return true;
}

bool matrix_add(matrix *sum, const matrix *a, const matrix *b) {
    if (a->rows != b->rows || a->columns != b->columns) {
        return false;
    }
    if (!matrix_create(sum, a->rows, a->columns)) {
        return false;
    }
    for (size_t i = 0; i < a->rows * a->columns; i++) {
        sum->values[i] = a->values[i] + b->values[i];
    }
    return true;
}

bool matrix_multiply(matrix *product, const matrix *a, const matrix *b) {
    if (a->columns != b->rows) {
        return false;
    }
    if (!matrix_create(product, a->rows, b->columns)) {
        return false;
    }
    for (size_t i = 0; i < a->rows; i++) {
        for (size_t j = 0; j < b->columns; j++) {
            double sum = 0.0;
            for (size_t k = 0; k < a->columns; k++) {
                sum += matrix_get(a, i, k) * matrix_get(b, k, j);
            }
            matrix_set(product, i, j, sum);
        }
    }
    return true;
}

bool matrix_transpose(matrix *result, const matrix *m) {
    if (!matrix_create(result, m->columns, m->rows)) {
        return false;
    }
    for (size_t i = 0; i < m->rows; i++) {
        for (size_t j = 0; j < m->columns; j++) {
            matrix_set(result, j, i, matrix_get(m, i, j));
        }
    }
    return true;
}

static void swap_rows(matrix *m, size_t a, size_t b) {
    for (size_t j = 0; j < m->columns; j++) {
        double value = matrix_get(m, a, j);
        matrix_set(m, a, j, matrix_get(m, b, j));
        matrix_set(m, b, j, value);
    }
}

/* Gaussian elimination with partial pivoting; the matrix is changed. */
double matrix_determinant(matrix *m) {
    double determinant = 1.0;
    for (size_t i = 0; i < m->rows; i++) {
        size_t pivot = i;
        for (size_t k = i + 1; k < m->rows; k++) {
            if (fabs(matrix_get(m, k, i)) > fabs(matrix_get(m, pivot, i))) {
                pivot = k;
            }
        }
        if (matrix_get(m, pivot, i) == 0.0) {
            return 0.0;
        }
        if (pivot != i) {
            swap_rows(m, pivot, i);
            determinant = -determinant;
        }
        determinant *= matrix_get(m, i, i);
        for (size_t k = i + 1; k < m->rows; k++) {
            double factor = matrix_get(m, k, i) / matrix_get(m, i, i);
            for (size_t j = i; j < m->columns; j++) {
                matrix_set(m, k, j, matrix_get(m, k, j) - factor * matrix_get(m, i, j));
            }
        }
    }
    return determinant;
}

void matrix_print(const matrix *m) {
    for (size_t i = 0; i < m->rows; i++) {
        for (size_t j = 0; j < m->columns; j++) {
            printf("%10.4f", matrix_get(m, i, j));
        }
        printf("\n");
    }
}

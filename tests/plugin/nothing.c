/* A shared object that is no plugin. */
int kakeya_test_nothing(void);
int kakeya_test_nothing(void) { return 0; }

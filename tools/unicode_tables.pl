#!/usr/bin/perl
# Writes src/grammar/unicode_tables.h: what \p{...} of regular expressions knows, of the Unicode version that this perl has.
# usage: perl tools/unicode_tables.pl > src/grammar/unicode_tables.h
use strict;
use warnings;
use Unicode::UCD qw(prop_invmap prop_invlist prop_value_aliases);

my $items = 0;
my $line = "";
sub put {    # items of a list, in lines of 120 columns
    my ($text) = @_;
    if (length($line) + length($text) + 2 > 120) { print "$line\n"; $line = ""; }
    $line .= ($line eq "" ? "    " : " ") . "$text,";
}
sub end { print "$line\n" if $line ne ""; $line = ""; print "};\n\n"; }

# Short and long names of the values; unassigned characters are Cn, of no script.
my @categories = qw(Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn);
my %category = map { $categories[$_] => $_ } 0 .. $#categories;

sub runs {    # property, values to numbers: prints where another value begins
    my ($property, $number, $bits) = @_;
    my ($list, $map) = prop_invmap($property);
    my $last = -1;
    for my $i (0 .. $#$list) {
        last if $list->[$i] > 0x10FFFF;
        my ($short) = prop_value_aliases($property, $map->[$i]);
        my $value = $number->{$short};
        die "$property $map->[$i]" unless defined $value;
        next if $value == $last;
        put(sprintf "0x%X", $list->[$i] << $bits | $value);
        $last = $value;
    }
}

print "/* What \\p{...} knows, of Unicode ", Unicode::UCD::UnicodeVersion(), ": written by tools/unicode_tables.pl. */\n";
print "/* clang-format off */\n#ifndef KAKEYA_GRAMMAR_UNICODE_TABLES_H\n#define KAKEYA_GRAMMAR_UNICODE_TABLES_H\n\n#include <stdint.h>\n\n";
print "/* General categories: short names and long ones. */\nstatic const char *const unicode_categories[][2] = {\n";
for (@categories) { my ($short, $long) = prop_value_aliases("gc", $_); put("{\"$short\", \"$long\"}"); }
end();
print "/* Where characters of another category begin: the character << 5 | the category. */\n";
print "static const uint32_t unicode_category_runs[] = {\n";
runs("gc", \%category, 5);
end();

my ($list, $map) = prop_invmap("sc");
my (%script, @scripts);
for my $value (sort @$map) {
    my ($short, $long) = prop_value_aliases("sc", $value);
    next if exists $script{$short};
    $script{$short} = scalar @scripts;
    push @scripts, [$short, $long];
}
print "/* Scripts: short names and long ones. */\nstatic const char *const unicode_scripts[][2] = {\n";
put("{\"$_->[0]\", \"$_->[1]\"}") for @scripts;
end();
print "/* Where characters of another script begin: the character << 8 | the script. */\n";
print "static const uint32_t unicode_script_runs[] = {\n";
runs("sc", \%script, 8);
end();

# Binary properties: what their categories do not give.
my @binary = (
    ["ASCII", "ASCII", ""], ["ASCII_Hex_Digit", "AHex", ""], ["Alphabetic", "Alpha", "Lu Ll Lt Lm Lo Nl"], ["Any", "Any", ""],
    ["Emoji", "Emoji", ""], ["Emoji_Component", "EComp", ""], ["Emoji_Modifier", "EMod", ""], ["Emoji_Modifier_Base", "EBase", ""],
    ["Emoji_Presentation", "EPres", ""], ["Extended_Pictographic", "ExtPict", ""], ["Lowercase", "Lower", "Ll"],
    ["Uppercase", "Upper", "Lu"], ["White_Space", "space", ""]);
my (%category_of, @bounds);
my ($starts, $values) = prop_invmap("gc");
my @ranges;
my @rows;
for my $row (@binary) {
    my ($name, $short, $of) = @$row;
    my %given = map { $_ => 1 } split / /, $of;
    my @in = $name eq "Any" ? (0) : prop_invlist($name);
    push @in, 0x110000 if @in % 2;
    my $first = @ranges;
    while (@in) {
        my ($low, $high) = (shift @in, shift(@in) - 1);
        my $at = 0;
        for my $i (0 .. $#$starts) { $at = $i if $starts->[$i] <= $low; }
        for (my $c = $low; $c <= $high;) {    # by runs of one category
            my $end = $at + 1 <= $#$starts ? $starts->[$at + 1] - 1 : 0x10FFFF;
            $end = $high if $end > $high;
            my ($value) = prop_value_aliases("gc", $values->[$at]);
            if (!$given{$value}) {
                if (@ranges > $first && $ranges[-1][1] == $c - 1) { $ranges[-1][1] = $end; }
                else { push @ranges, [$c, $end]; }
            }
            $c = $end + 1;
            $at++;
        }
    }
    my $mask = 0;
    $mask |= 1 << $category{$_} for keys %given;
    push @rows, sprintf("{\"%s\", \"%s\", 0x%X, %d, %d}", $name, $short, $mask, $first, @ranges - $first);
}
print "/* Properties that a character has or has not: those of some categories (bits), and n ranges from `first` on. */\n";
print "static const struct {\n    const char *name, *alias;\n    uint32_t categories;\n    uint16_t first, n;\n} unicode_properties[] = {\n";
print "    $_,\n" for @rows;
print "};\n\n";
print "static const uint32_t unicode_property_ranges[][2] = {\n";
put(sprintf "{0x%X, 0x%X}", @$_) for @ranges;
end();

# Simple case folding: runs of characters, `step` apart, that fold to what is as far from each.
print "/* Simple case folding: characters from first to last, `step` apart, fold to themselves + to. */\n";
print "static const struct {\n    uint32_t first, last, step;\n    int32_t to;\n} unicode_folds[] = {\n";
my ($folded, $to) = prop_invmap("Simple_Case_Folding");
my @folds;
for my $i (0 .. $#$folded) {
    next if ref $to->[$i] || $to->[$i] == 0;
    my $end = $i < $#$folded ? $folded->[$i + 1] - 1 : 0x10FFFF;
    for my $c ($folded->[$i] .. $end) {
        my $delta = $to->[$i] - $folded->[$i];
        my $run = @folds ? $folds[-1] : undef;
        my $step = $run ? $c - $run->[1] : 0;
        if ($run && $run->[3] == $delta && $step <= 2 && ($run->[0] == $run->[1] || $run->[2] == $step)) {
            @$run[1, 2] = ($c, $step);
        } else {
            push @folds, [$c, $c, 1, $delta];
        }
    }
}
put(sprintf "{0x%X, 0x%X, %d, %d}", @$_) for @folds;
end();
print "#endif\n";

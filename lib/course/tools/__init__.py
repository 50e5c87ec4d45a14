"""The programs behind `make`: the lab, the book, the tests, the doctor, and pictures of covers."""

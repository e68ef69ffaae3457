mkdir pages
printf 'The first page\nend\n' >pages/1.txt
printf 'The second page\nend\n' >pages/2.txt
printf 'The third page\nend\n' >pages/3.txt
